"""Tests of the cleanup of shared memory: it removes files of killed ranks only."""

import mmap
import subprocess
import sys

import pytest

from dithc.engine.comm.launch import shm_cleanup

SIZE = 4096


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(shm_cleanup, "FOLDER", tmp_path)
    return tmp_path


def make(path):
    path.write_bytes(bytes(SIZE))
    return path


def test_only_new_unused_files_are_removed(folder):
    old = make(folder / "mpich_shm_1_0")
    existing = shm_cleanup.names()
    unused = [make(folder / name) for name in ("mpich_shm_2_0", "ucx_shm_posix_2", "dithc-2")]
    kept = [old, make(folder / "sem.others"), make(folder / "mpich_shm_3_0"), make(folder / "mpich_shm_4_0")]
    code = f"import mmap, sys; f = open({str(kept[2])!r}, 'r+b'); m = mmap.mmap(f.fileno(), {SIZE}); f.close()"
    code += "; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # another process has mapped a file, and this one has opened another
        with kept[3].open("rb"):
            shm_cleanup.sweep(existing)
            assert sorted(folder.iterdir()) == sorted(kept)
        process.stdin.close()
    shm_cleanup.sweep(existing)
    assert sorted(folder.iterdir()) == sorted(kept[:2])
    assert not any(path.exists() for path in unused)


def test_names_of_mapped_mpich_segments_are_removed(folder):
    mapped, unmapped = make(folder / "mpich_shm_6_0"), make(folder / "mpich_shm_7_0")
    with mapped.open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as memory:
        shm_cleanup.unlink_shared_memory()
        memory[0] = 1
    assert not mapped.exists()
    assert unmapped.exists()
