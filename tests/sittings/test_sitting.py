"""What was measured is kept unit by unit, taken over by the same command alone, and told when somebody stops it."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dithc.bench import trainings
from dithc.bench.operators import ops
from dithc.bench.timing import take_turns
from dithc.bench.trainings import run as module
from dithc.bench.trainings.run import Run, settled
from dithc.cli import main
from dithc.sittings import Sitting, Stopped, now, sitting

SETTINGS = {"model": "DiT-S/2", "rounds": 3}


def counted(limit: int, error: BaseException) -> Callable[[], int]:
    """Gives 1, 2, ...; after `limit` calls somebody stops it."""
    calls = iter(range(1, limit + 1))

    def make() -> int:
        for number in calls:
            return number
        raise error

    return make


def test_units_of_an_earlier_sitting_are_not_made_again_and_come_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.jsonl"
    make = counted(3, KeyboardInterrupt())
    with sitting(path, settings=SETTINGS) as first:
        assert [first.unit(name, make) for name in "aba"] == [1, 2, 3]
        with pytest.raises(Stopped):
            first.unit("c", make)
        assert first.stopped_by == "Ctrl-C"
        with pytest.raises(Stopped):
            first.unit("d", lambda: pytest.fail("nothing is begun after it"))
    again = counted(1, KeyboardInterrupt())
    with sitting(path, settings=SETTINGS) as second:
        assert [second.unit(name, again) for name in "aab"] == [1, 3, 2]
        assert second.unit("c", again) == 1
        assert second.number == 2
        second.end()
    assert not path.exists()


@pytest.mark.parametrize("other", [{**SETTINGS, "rounds": 4}, {}])
def test_units_of_other_settings_are_not_taken(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "kept.jsonl"
    with sitting(path, settings=SETTINGS) as first:
        first.unit("a", lambda: 1)
    with sitting(path, settings=other) as second:
        assert second.unit("a", lambda: 2) == 2
        assert second.number == 1


def test_a_line_that_is_torn_or_altered_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with sitting(path, settings=SETTINGS) as first:
        for name in "abc":
            first.unit(name, lambda: 7)
    begin, a, b, c = path.read_text().splitlines(keepends=True)
    path.write_text(begin + a.replace("7", "8") + b + c[:20])
    with sitting(path, settings=SETTINGS) as second:
        assert [second.unit(name, lambda: 9) for name in "abc"] == [9, 7, 9]


def test_failures_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    for value in ("failed", "ok"):
        with sitting(path, settings=SETTINGS) as here:
            assert here.unit("a", lambda value=value: value, keep=lambda found: found == "ok") == value
    with sitting(path, settings=SETTINGS) as here:
        assert here.unit("a", lambda: "new") == "ok"


def test_outside_of_a_sitting_and_before_the_first_unit_an_interruption_stays_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        now().unit("a", counted(0, KeyboardInterrupt()))
    with sitting(tmp_path / "kept.jsonl", settings={}) as here, pytest.raises(KeyboardInterrupt):
        here.unit("a", counted(0, KeyboardInterrupt()))
    assert not list(tmp_path.iterdir())


def test_sigterm_ends_a_unit_and_the_handler_of_before_comes_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sitting(tmp_path / "kept.jsonl", settings={}) as here:
        here.unit("a", lambda: 1)
        with pytest.raises(Stopped):
            here.unit("b", lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert here.stopped_by == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_rounds_that_were_made_are_told_and_ratios_are_of_whole_rounds(tmp_path: Path) -> None:
    slow = counted(3, KeyboardInterrupt())  # the second round is cut
    runs: dict[str, Callable[[], object]] = {"a": slow, "b": slow}
    with sitting(tmp_path / "kept.jsonl", settings={}):
        first = take_turns(runs, repeats=5, are_units=True)
    assert [len(timing.seconds) for timing in first.values()] == [1, 1]
    with sitting(tmp_path / "kept.jsonl", settings={}):
        whole = take_turns({"a": int, "b": int}, repeats=5, are_units=True)
    assert [len(timing.seconds) for timing in whole.values()] == [5, 5]
    assert all(whole[name].seconds[0] == first[name].seconds[0] for name in "ab")
    assert take_turns({"a": int}, repeats=0)["a"].seconds == ()


def test_contenders_are_compared_over_the_rounds_that_all_have() -> None:
    ok, gone = Run(seconds=[1.0]), Run(status="stopped")
    found = settled({"a": [ok, ok], "b": [ok, gone], "c": [gone], "d": [Run(status="oom")]})
    assert {name: [run.status for run in own] for name, own in found.items()} == {
        "a": ["ok"],
        "b": ["ok"],
        "c": ["stopped"],
        "d": ["oom"],
    }
    assert [len(own) for own in settled({"a": [ok, ok], "b": [ok]}).values()] == [2, 1]


def test_stopped_trainings_write_what_they_have_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def run(contender: trainings.Contender, *_: Any, **__: Any) -> Run:
        if len(made) == 3:
            raise SystemExit(143)
        made.append(contender.name)
        return Run(seconds=[float(len(made))], losses=[1.0], sent_each=[])

    monkeypatch.setattr(module, "_made", run)
    monkeypatch.setattr("dithc.bench.trainings.strategies._counter", lambda _: (None, ""))
    out = tmp_path / "strategies.json"
    words = ["bench", "strategies", "--models", "S/2", "--batches", "8,16", "--strategies", "cftp,dp", "--rounds", "2"]
    words += ["--memory-limit", "1", "--json", str(out)]
    assert main(words) == 75
    assert "the same command goes on from there" in capsys.readouterr().out
    assert not out.exists()
    part = json.loads((tmp_path / "strategies.stopped.json").read_text())
    first, second = part["cells"]
    assert [len(first["strategies"][name]["steps_seconds"]) for name in ("cftp", "dp")] == [1, 1]
    assert {row["status"] for row in second["strategies"].values()} == {"stopped"}
    assert part["stopped_by"] == "SIGTERM"

    before, made[:] = list(made), []
    monkeypatch.setattr(module, "_made", lambda contender, *_, **__: made.append(contender.name) or Run(seconds=[9.0]))
    assert main(words) == 0
    assert before == ["cftp", "dp", "dp"]
    assert made == ["cftp", "cftp", "dp", "dp", "cftp"], "what is left of 8 runs"
    whole = json.loads(out.read_text())
    assert whole["sittings"] == 2
    assert whole["cells"][0]["strategies"]["dp"]["steps_seconds"] == [[2.0], [3.0]]
    assert [path.name for path in tmp_path.iterdir()] == ["strategies.json"]


def test_stopped_cases_are_written_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, real, calls = tmp_path / "ops.json", ops._measure, []

    def measure(case: Any, *rest: Any) -> Any:
        calls.append(case.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(case, *rest)

    words = ["bench", "ops", "--ops", "gelu,silu", "--dtype", "fp32", "--backend", "reference", "--bytes", "65536"]
    words += ["--repeats", "2", "--threads", "1", "--json", str(out)]
    monkeypatch.setattr(ops, "_measure", measure)
    assert main(words) == 130
    (case,) = json.loads((tmp_path / "ops.stopped.json").read_text())["cases"]
    assert main(words) == 0
    whole = json.loads(out.read_text())["cases"]
    assert whole[0] == case
    assert len(whole) == len(calls) - 1 > 1, "one was cut and is made again"


def test_a_sitting_without_a_file_keeps_nothing() -> None:
    assert Sitting().unit("a", lambda: 3) == 3
