"""Units are stored one by one, reused only by the same command, and reported when a user stops it."""

import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.bench import environment, training
from dithc.bench.operators import ops
from dithc.bench.resume import MeasurementStopped, current_session, measurement_session
from dithc.bench.timing import time_runs
from dithc.bench.training import run as module
from dithc.bench.training.run import TrainingResult, comparable_runs
from dithc.cli import main
from dithc.core.artifacts import difference
from dithc.core.logging import progress
from dithc.engine.hardware import discover_machine

SETTINGS = {"model": "DiT-S/2", "rounds": 3}


def counter(limit: int, error: BaseException) -> Callable[[], int]:
    """Return 1, 2, ..., and raise `error` after `limit` calls."""
    calls = iter(range(1, limit + 1))

    def make() -> int:
        for number in calls:
            return number
        raise error

    return make


def test_resumed_session_reuses_stored_units_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.jsonl"
    make = counter(3, KeyboardInterrupt())
    with measurement_session(path, settings=SETTINGS) as first:
        assert [first.unit(name, make) for name in "aba"] == [1, 2, 3]
        with pytest.raises(MeasurementStopped):
            first.unit("c", make)
        assert first.stopped_by == "Ctrl-C"
        with pytest.raises(MeasurementStopped):
            first.unit("d", lambda: pytest.fail("nothing is begun after it"))
    again = counter(1, KeyboardInterrupt())
    with measurement_session(path, settings=SETTINGS) as second:
        assert [second.unit(name, again) for name in "aab"] == [1, 3, 2]
        assert second.unit("c", again) == 1
        assert second.number == 2
        second.end()
    assert not path.exists()


@pytest.mark.parametrize("other", [SETTINGS, {**SETTINGS, "rounds": 4}, {}, {"where": {"isa": "ref"}}])
def test_units_are_reused_only_with_equal_settings_and_changes_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    path = tmp_path / "kept.jsonl"
    with measurement_session(path, settings=SETTINGS) as first:
        first.unit("a", lambda: 1)
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    caplog.set_level(logging.INFO, "dithc")
    with measurement_session(path, settings=other) as second:
        assert second.unit("a", lambda: 2) == (1 if other == SETTINGS else 2)
        assert second.number == (2 if other == SETTINGS else 1)
    (message,) = caplog.messages
    assert message.startswith("discarding") == (other != SETTINGS)
    assert difference(SETTINGS, other) in message


LEAVES = st.dictionaries(
    st.sampled_from("abc"), st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2), min_size=1
)
TREES = st.dictionaries(st.sampled_from("xy"), LEAVES)


@given(TREES, TREES)
def test_difference_names_exactly_the_changed_leaves(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = difference(before, after)
    assert (found == "") == (before == after)
    for one, other in ((before, after), (after, before)):
        for name, part in one.items():
            for key, value in part.items():
                assert (f"{name}.{key}: " in found) == (value != other.get(name, {}).get(key))


VARIABLES = ("OMP_PROC_BIND", "MKL_NUM_THREADS", "LD_PRELOAD", "DITHC_OUTPUT_POOL", "HCOPS_ANY", "MALLOC_ARENA_MAX")


def test_environment_records_machine_kernel_package_and_variable_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path))
    before = environment.environment()
    assert difference(before, environment.environment()) == ""
    machine, packages = discover_machine(), {one.name: one.version for one in distributions()} | {"numpy": "0.1"}
    one_core = replace(machine, limits=replace(machine.limits, allowed_cpus=machine.limits.allowed_cpus[:1]))
    monkeypatch.setattr(environment, "discover_machine", lambda: replace(one_core, memory_bytes=1))
    monkeypatch.setattr(environment.native, "instruction_set", lambda: "other")
    monkeypatch.setattr(
        environment, "distributions", lambda: [SimpleNamespace(name=n, version=v) for n, v in packages.items()]
    )
    (tmp_path / "tuned.json").write_text("{}")
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    after = environment.environment()
    assert before["machine"]["memory_bytes"] != after["machine"]["memory_bytes"] == 1
    assert before["machine"]["limits"]["allowed_cpus"][:1] == after["machine"]["limits"]["allowed_cpus"]
    assert before["kernels"]["isa"] != after["kernels"]["isa"] == "other"
    assert before["packages"] != after["packages"] == packages
    assert (list(before["tuning"]), list(after["tuning"])) == ([], ["tuned.json"])
    assert {name: after["variables"][name] for name in VARIABLES} == dict.fromkeys(VARIABLES, "1")
    assert not set(before["variables"]) & set(VARIABLES)


def test_truncated_or_altered_line_is_remeasured(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with measurement_session(path, settings=SETTINGS) as first:
        for name in "abc":
            first.unit(name, lambda: 7)
    begin, a, b, c = path.read_text().splitlines(keepends=True)
    path.write_text(begin + a.replace("7", "8") + b + c[:20])
    with measurement_session(path, settings=SETTINGS) as second:
        assert [second.unit(name, lambda: 9) for name in "abc"] == [9, 7, 9]


def test_failed_units_are_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    for value in ("failed", "ok"):
        with measurement_session(path, settings=SETTINGS) as session:
            assert session.unit("a", lambda value=value: value, keep=lambda found: found == "ok") == value
    with measurement_session(path, settings=SETTINGS) as session:
        assert session.unit("a", lambda: "new") == "ok"


def test_interrupt_without_stored_units_raises_keyboard_interrupt(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        current_session().unit("a", counter(0, KeyboardInterrupt()))
    with measurement_session(tmp_path / "kept.jsonl", settings={}) as session, pytest.raises(KeyboardInterrupt):
        session.unit("a", counter(0, KeyboardInterrupt()))
    assert not list(tmp_path.iterdir())


def test_sigterm_stops_a_unit_and_the_previous_handler_is_restored(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with measurement_session(tmp_path / "kept.jsonl", settings={}) as session:
        session.unit("a", lambda: 1)
        with pytest.raises(MeasurementStopped):
            session.unit("b", lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert session.stopped_by == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_stopped_timing_keeps_complete_rounds_and_resumes_the_rest(tmp_path: Path) -> None:
    slow = counter(3, KeyboardInterrupt())  # the second round is cut
    runs: dict[str, Callable[[], object]] = {"a": slow, "b": slow}
    with measurement_session(tmp_path / "kept.jsonl", settings={}):
        first = time_runs(runs, repeats=5, are_units=True)
    assert [len(timing.seconds) for timing in first.values()] == [1, 1]
    with measurement_session(tmp_path / "kept.jsonl", settings={}):
        whole = time_runs({"a": int, "b": int}, repeats=5, are_units=True)
    assert [len(timing.seconds) for timing in whole.values()] == [5, 5]
    assert all(whole[name].seconds[0] == first[name].seconds[0] for name in "ab")
    assert time_runs({"a": int}, repeats=0)["a"].seconds == ()


def test_variants_are_compared_over_their_common_rounds() -> None:
    ok, gone = TrainingResult(seconds=[1.0]), TrainingResult(status="stopped")
    found = comparable_runs({"a": [ok, ok], "b": [ok, gone], "c": [gone], "d": [TrainingResult(status="oom")]})
    assert {name: [run.status for run in results] for name, results in found.items()} == {
        "a": ["ok"],
        "b": ["ok"],
        "c": ["stopped"],
        "d": ["oom"],
    }
    assert [len(results) for results in comparable_runs({"a": [ok, ok], "b": [ok]}).values()] == [2, 1]


def test_stopped_run_limits_all_variants_to_common_rounds_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contenders = [training.TrainingVariant(name=name, strategy=name, ranks=1, cpus=1) for name in ("cftp", "dp")]
    executed: list[str] = []

    def run(contender: training.TrainingVariant, *_: Any, **__: Any) -> TrainingResult:
        if len(executed) == 3:
            raise SystemExit(143)
        executed.append(contender.name)
        return TrainingResult(seconds=[float(len(executed))])

    def measured() -> dict[str, list[float]]:
        with measurement_session(tmp_path / "kept.jsonl", settings={}), progress(total=4, label="a", quiet=True) as bar:
            runs = training.interleaved(
                contenders, 2, lambda one: training.run_training(one, ["--steps", "1"]), bar=bar
            )
        return {name: [run.seconds[0] for run in results] for name, results in runs.items()}

    monkeypatch.setattr(module, "_execute", run)
    assert measured() == {"cftp": [1.0], "dp": [2.0]}
    assert executed == ["cftp", "dp", "dp"]
    executed.clear()
    assert measured() == {"cftp": [1.0, 1.0], "dp": [2.0, 3.0]}, "only the remaining run was executed"


@pytest.mark.parametrize("is_same", [True, False], ids=["same environment", "other threads"])
def test_stopped_bench_writes_complete_cases_and_resumes_if_unchanged(
    is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real, calls = tmp_path / "ops.json", ops._measure, []

    def measure(case: Any, *others: Any) -> Any:
        calls.append(case.name)
        if len(calls) == 2:
            raise KeyboardInterrupt if is_same else SystemExit(143)
        return real(case, *others)

    arguments = ["bench", "ops", "--ops", "gelu,silu", "--dtype", "fp32", "--backend", "reference", "--bytes", "65536"]
    arguments += ["--rounds", "2", "--threads", "1", "--json", str(out)]
    monkeypatch.setattr(ops, "_measure", measure)
    monkeypatch.setenv("OMP_DYNAMIC", "false")
    assert main(arguments) == (130 if is_same else 75)
    assert not out.exists()
    (case,) = json.loads((tmp_path / "ops.stopped.json").read_text())["cases"]
    monkeypatch.setenv("OMP_DYNAMIC", "false" if is_same else "true")
    assert main(arguments) == 0
    whole = json.loads(out.read_text())
    assert (whole["cases"][0] == case) == is_same
    assert whole.get("sessions", 1) == (2 if is_same else 1)
    assert len(whole["cases"]) == len(calls) - (1 if is_same else 2) > 1, "the cut case must be measured again"
