"""Folders of unpacked archives: ingestion removes folders of killed processes only."""

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dithc.config import datasets
from dithc.core.artifacts import outputs
from dithc.data import archives
from dithc.data.archives import remove_stale_folders, scratch_folder
from dithc.data.readers import read_scenes
from dithc.data.scene import Scene

UNPACKING_PROGRAM = """
import sys
from pathlib import Path
from dithc.config import datasets
from dithc.data.readers import read_scenes
from dithc.data.readers.sentinel2 import zip_products
whole = zip_products._unpack
def unpack(packed, entry, folder):
    whole(packed, entry, folder)
    if not entry.is_dir():
        print("unpacking", flush=True)
        sys.stdin.read()
zip_products._unpack = unpack
list(read_scenes(datasets.Sentinel2Source(kind="sentinel2", path="x"), Path(sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the folder for unpacking."""
    folder = tmp_path / "room"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def packed(safe_folder: Path, safe_product: Path, tmp_path: Path) -> Path:
    """Create a zip file with a product."""
    return Path(shutil.make_archive(str(tmp_path / safe_product.stem), "zip", safe_folder, safe_product.name))


@pytest.fixture
def start_unpacking(packed: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that unpacks one file of the product and then waits; return when it waits."""
    processes = list[subprocess.Popen[str]]()

    def start_process() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", UNPACKING_PROGRAM, str(packed)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == "unpacking\n"
        return processes[-1]

    yield start_process
    for child in processes:
        child.kill()
        child.communicate()


def kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    assert child.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_ingestion_removes_only_scratch_folders_of_killed_processes(
    scratch: Path, packed: Path, start_unpacking: Callable[[], subprocess.Popen[str]]
) -> None:
    dead = start_unpacking()
    (abandoned,) = scratch.iterdir()
    assert [path for path in abandoned.rglob("*") if path.is_file()]
    living = start_unpacking()
    (used,) = set(scratch.iterdir()) - {abandoned}
    kill(dead)
    assert abandoned.exists()
    source = datasets.Sentinel2Source(kind="sentinel2", path="x")
    (scene,) = read_scenes(source, packed)  # another ingestion process with the same archive
    assert isinstance(scene, Scene), scene.error
    assert list(scratch.iterdir()) == [used]
    assert [path for path in used.rglob("*") if path.is_file()]
    kill(living)
    remove_stale_folders()
    assert not any(scratch.iterdir())


def test_scratch_folder_used_by_another_thread_is_preserved() -> None:
    with scratch_folder(Path("x.zip")) as folder:
        sweeper = threading.Thread(target=remove_stale_folders)
        sweeper.start()
        sweeper.join()
        remove_stale_folders()
        assert folder.is_dir()
    assert not folder.exists()


def test_cleanup_preserves_links_files_and_unmarked_folders(scratch: Path, tmp_path: Path) -> None:
    prefix = archives._folder_prefix()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (scratch / f"{prefix}link").symlink_to(elsewhere)
    (scratch / f"{prefix}file").touch()
    (scratch / "dithc-another.machine-abc").mkdir()
    (scratch / "other").mkdir()
    (scratch / f"{prefix}of-the-user").mkdir()
    outputs.make_scratch(scratch / f"{prefix}abandoned")
    (scratch / f"{prefix}abandoned" / "S2A.SAFE").mkdir()
    (scratch / f"{prefix}abandoned" / "link").symlink_to(elsewhere)
    remove_stale_folders()
    assert {path.name for path in scratch.iterdir()} == {
        f"{prefix}link",
        f"{prefix}file",
        "dithc-another.machine-abc",
        "other",
        f"{prefix}of-the-user",
    }
    assert (elsewhere / "kept").exists()


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), OSError(95, "Operation not supported")])
def test_scratch_folder_in_use_is_preserved_without_file_locks(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise error

    monkeypatch.setattr(archives.fcntl, "flock", flock)
    with scratch_folder(Path("x.zip")) as folder:
        remove_stale_folders()
        assert folder.is_dir()
    assert not any(scratch.iterdir())


@pytest.mark.parametrize("moment", ["before the lock", "after it was taken"])
def test_scratch_folder_lost_before_the_lock_is_replaced(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole, stolen = archives._lock_folder, list[Path]()

    def locked(folder: Path) -> int:
        if not stolen:
            stolen.append(folder)
            if moment == "before the lock":
                folder.rmdir()
            else:
                raise BlockingIOError
        return whole(folder)

    monkeypatch.setattr(archives, "_lock_folder", locked)
    with scratch_folder(Path("x.zip")) as folder:
        assert folder != stolen[0]
        assert folder.is_dir()
    assert not any(scratch.iterdir())
