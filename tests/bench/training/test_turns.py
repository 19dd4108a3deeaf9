"""Tests of runs in turns: their order, and runs that fail or are late."""

import sys
import time
from pathlib import Path

import pytest

from dithc.bench.training import TrainingVariant
from dithc.bench.training import turns as module
from dithc.bench.training.turns import TIME_OVER, TurnRun, run_in_turns

# A process with the protocol of `dithc bench training`, which appends its steps to a file that all processes share.
PROCESS = """
import json, sys, time
from pathlib import Path
from dithc.core.processes import Turns
name, steps, settings, out = sys.argv[1:]
if name == "failing":
    sys.exit("no such preset")
if name == "late":
    time.sleep(60)
turns, finished = Turns(Path(json.loads(Path(settings).read_text())[0]["turns"])), 0
turns.report(0)
while turns.wait(finished):
    time.sleep(0.02)
    with Path(steps).open("a") as stream:
        stream.write(f"{name} {finished}\\n")
    finished += 1
    turns.report(finished)
rank = {"peak_rss_bytes": 1, "sent": 0}
Path(out).write_text(json.dumps({"seconds": [0.02] * (finished - 1), "losses": [], "each_rank": [rank]}))
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch) -> Path:
    def argv(variant, options, *, out):
        settings = options[options.index("--settings") + 1]
        return [sys.executable, "-c", PROCESS, variant.name, str(tmp_path / "steps"), settings, str(out)]

    monkeypatch.setattr(module, "training_argv", argv)
    monkeypatch.setattr(module, "MAX_ROUNDS", 3)
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    return tmp_path / "steps"


def runs_of(*names: str, cycle: int = 1) -> list[TurnRun]:
    variants = [TrainingVariant(name=name, strategy="cftp", ranks=1, cpus=1) for name in names]
    return [TurnRun(variant=variant, options=[], settings=[{}], cycle=cycle) for variant in variants]


def test_processes_step_one_after_another_in_alternating_order(steps):
    results = run_in_turns(runs_of("a", "b", cycle=2), until=time.monotonic() + 60, label="test")
    assert [(result.status, len(result.seconds)) for result in results] == [("ok", 6)] * 2
    names = "".join(line.split()[0] for line in steps.read_text().splitlines())
    assert names == "ab" + "aabb" + "bbaa" + "aabb", "warm-up, then rounds of two steps each"


def test_failed_run_has_its_reason_and_the_others_continue(steps):
    failed, other = run_in_turns(runs_of("failing", "b"), until=time.monotonic() + 60, label="test")
    assert failed.status == "failed"
    assert "no such preset" in failed.reason
    assert (other.status, len(other.seconds)) == ("ok", 3)


def test_run_that_is_not_ready_in_time_is_ended(steps):
    start = time.monotonic()
    late, other = run_in_turns(runs_of("late", "b"), until=start + 1, label="test")
    assert (late.status, late.reason) == ("stopped", TIME_OVER)
    assert other.status == "stopped", "no turn began before the time was over"
    assert time.monotonic() - start < 20
