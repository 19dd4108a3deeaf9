"""Tests of turns of processes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dithc.core.processes import Turns


def test_a_process_steps_only_when_allowed_and_ends(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Turns, "PAUSE_SECONDS", 0.001)
    starter, process = Turns(tmp_path / "turns"), Turns(tmp_path / "turns")
    assert starter.finished is None
    process.report(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(process.wait, 0)
        assert starter.finished == 0
        assert not waiting.done()
        starter.allow(2)
        assert waiting.result(timeout=10)
        assert process.wait(1)
        process.report(2)
        assert starter.finished == 2
        waiting = pool.submit(process.wait, 2)
        starter.allow(0)
        assert not waiting.result(timeout=10)


def test_a_process_ends_without_its_starter(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Turns, "LONGEST_WAIT_SECONDS", 0.01)
    assert not Turns(tmp_path / "turns").wait(0)
