"""Process trees from an emulated /proc."""

from pathlib import Path

from dithc.core.processes import child_processes, descendants, process_fields


def test_descendants_follow_living_processes_of_any_name(tmp_path: Path) -> None:
    for pid, (name, state, parent) in {
        1: (b"init", "S", 0),
        5: (b"a ) (b", "R", 1),
        6: (b"\xff", "S", 5),
        7: (b"ended", "Z", 5),
        8: (b"leaf", "S", 6),
    }.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_bytes(b"%d (%s) %s %d 0\n" % (pid, name, state.encode(), parent))
    (tmp_path / "self").mkdir()
    assert {parent: sorted(pids) for parent, pids in child_processes(proc=tmp_path).items()} == {
        0: [1],
        1: [5],
        5: [6],
        6: [8],
    }
    assert descendants(1, proc=tmp_path) == [5, 6, 8]
    assert descendants(8, proc=tmp_path) == []
    assert process_fields(99, proc=tmp_path) == []
