"""Memory limits: a control group of either version if possible, else a reported limit on private memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.bench.training import memory_limit
from dithc.bench.training.memory_limit import MemoryLimit

MEBI = 1 << 20
V1_FILES = {"memory.limit_in_bytes": "", "memory.memsw.limit_in_bytes": "", "memory.oom_control": "oom_kill 0\n"}
V2_FILES = {"memory.max": "max", "memory.swap.max": "max", "memory.events": "low 0\noom_kill 0\n"}


class Tree:
    """Emulated control groups. A new group gets its files from the kernel and loses them when it is removed."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root, self.own_groups, self.files = root, root / "own", {**V1_FILES, **V2_FILES}
        self.own_groups.write_text("4:memory:/a/b\n1:cpu,cpuacct:/other\n0::/c\n")
        mkdir, rmdir = Path.mkdir, Path.rmdir

        def make(folder: Path, *arguments, **more) -> None:
            mkdir(folder, *arguments, **more)
            for name, content in self.files.items() if folder.name.startswith("dithc-bench") else ():
                (folder / name).write_text(content)

        def remove(folder: Path) -> None:
            for path in folder.iterdir():
                path.unlink()
            rmdir(folder)

        monkeypatch.setattr(Path, "mkdir", make)
        monkeypatch.setattr(Path, "rmdir", remove)

    def version_2(self, controllers: str) -> Path:
        (self.root / "c").mkdir()
        (self.root / "c" / "cgroup.subtree_control").write_text(controllers)
        return self.root / "c" / f"dithc-bench-{os.getpid()}"

    def version_1(self, hierarchy: str) -> Path:
        folder = self.root / "memory" / "a" / "b"
        folder.mkdir(parents=True)
        (folder / "memory.use_hierarchy").write_text(hierarchy)
        return folder / f"dithc-bench-{os.getpid()}"

    def limit(self) -> MemoryLimit:
        return MemoryLimit(1000, ranks=4, root=self.root, own_groups=self.own_groups)


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


@pytest.mark.parametrize("version", [1, 2])
def test_control_group_limits_memory_and_swap_and_counts_kills(tree, version):
    group = tree.version_2("cpu memory\n") if version == 2 else tree.version_1("1\n")
    limit = tree.limit()
    assert (limit.data_bytes, str(group) in limit.description, "no swap" in limit.description) == (None, True, True)
    memory, swap, kills = V2_FILES if version == 2 else V1_FILES
    # Version 1 limits memory and swap together.
    assert [(group / name).read_text() for name in (memory, swap)] == ["1000", "0" if version == 2 else "1000"]
    assert not limit.has_killed()
    (group / kills).write_text("low 0\nunder_oom 0\noom_kill 2\n")
    assert limit.has_killed()
    limit.close()
    assert not group.exists()


def test_missing_swap_accounting_is_described_as_unlimited_swap(tree):
    del tree.files["memory.memsw.limit_in_bytes"]
    tree.version_1("1\n")
    assert "swap unlimited" in tree.limit().description


def test_missing_control_group_limits_private_memory_and_reports_reasons(tree):
    tree.version_1("0\n")
    tree.version_2("cpu\n")
    limit = tree.limit()
    assert limit.data_bytes == 250
    kind = "private memory (RLIMIT_DATA) of 250 bytes for each of 4"
    assert all(phrase in limit.description for phrase in (kind, "does not delegate", "exclude its child groups"))
    assert not limit.has_killed()
    limit.close()


@pytest.mark.long  # creates a control group on this machine
def test_process_over_the_group_limit_is_killed_and_group_is_removed():
    limit = MemoryLimit(32 * MEBI, ranks=1)
    if limit.data_bytes is not None:
        pytest.skip(f"no control group here: {limit.description}")
    folder = Path(limit.description.split()[2])
    try:
        ends = [
            subprocess.run(
                [sys.executable, "-S", "-c", f"bytearray({size}).count(1)"], preexec_fn=limit.enter
            ).returncode
            for size in (8 * MEBI, 64 * MEBI)
        ]
        assert (ends, limit.has_killed()) == ([0, -9], True)
    finally:
        limit.close()
    assert not folder.exists()


def test_unremovable_control_group_is_logged(tree, monkeypatch, caplog):
    group = tree.version_1("1\n")
    limit = tree.limit()
    monkeypatch.setattr(memory_limit, "LONGEST_WAIT_SECONDS", 0.0)

    def busy(_: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rmdir", busy)
    limit.close()
    assert f"control group {group} cannot be removed" in caplog.text
