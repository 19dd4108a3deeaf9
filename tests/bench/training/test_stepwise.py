"""Stepwise benchmark: accumulation, comparison within a round, missing values. Tests do not check times."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest

from dithc.bench import summary
from dithc.bench.training.run import TrainingResult
from dithc.bench.training.stepwise import NAMES, StepwiseSettings, rows_of, variants_of
from dithc.cli import main
from tests.ranks import needs_kernels

TINY = ["--override=hidden_size=64", "--override=depth=1", "--override=num_heads=2", "--model", "S/2", "--batch", "2"]


def machine(cores: int):
    return SimpleNamespace(visible_cores=[None] * cores)


def ok(*seconds: float, losses: tuple[float, ...] = (1.0, 0.9), reason: str = "") -> TrainingResult:
    rank = {"page_faults": 5.0, "operators": [{"op": "linear", "reason": reason}]}
    return TrainingResult(
        seconds=list(seconds), losses=list(losses), peak_rss_bytes_each=[7], result={"each_rank": [rank]}
    )


def test_each_stage_adds_a_single_change_to_the_previous_stage() -> None:
    found = variants_of(StepwiseSettings(ranks=2), machine(4))
    assert [one.name for one in found] == list(NAMES)
    assert {(one.ranks, one.cpus, one.strategy) for one in found} == {(2, 2, "cftp")}
    settings_of = [dict(zip(one.options[::2], one.options[1::2], strict=True)) | dict(one.environment) for one in found]
    assert settings_of[0] == {
        "--operators": "torch", "--gradients": "ddp", "--automem": "off", "--collectives": "blocking",
        "DITHC_OUTPUT_POOL": "off", "DITHC_TUNING_FOLDER": "off",
    }  # fmt: skip
    changes = [{key for key in now if now[key] != before[key]} for before, now in pairwise(settings_of)]
    assert changes == [
        {"--operators"},
        {"--gradients", "--collectives"},
        {"--operators"},
        {"--automem", "DITHC_OUTPUT_POOL"},
        {"DITHC_TUNING_FOLDER"},
    ]


def test_single_rank_omits_the_mpi_stage_and_stages_are_selectable() -> None:
    assert "mpi" not in [one.name for one in variants_of(StepwiseSettings(), machine(2))]
    chosen = variants_of(StepwiseSettings(stages=("gemm", "tuned")), machine(2))
    assert [one.name for one in chosen] == ["gemm", "tuned"]
    assert dict(chosen[0].environment)["DITHC_OUTPUT_POOL"] == "off", "settings of an omitted stage are missing"


def test_speedups_compare_equal_rounds_with_first_and_previous_stage() -> None:
    settings = StepwiseSettings(stages=("baseline", "gemm", "mpi", "operators"))
    runs = {
        "baseline": [ok(4.0), ok(6.0)],
        "gemm": [ok(2.0), ok(2.0)],
        "operators": [ok(1.0), ok(2.0, losses=(1.0, 0.99))],
    }
    rows = {row["name"]: row for row in rows_of(settings, runs)}
    assert rows["gemm"]["speedup"]["rounds"] == [2.0, 3.0]
    assert rows["operators"]["speedup"]["rounds"] == [4.0, 3.0]
    assert rows["operators"]["speedup_over_previous"]["rounds"] == [2.0, 1.0], "the stage without a run was not skipped"
    assert rows["operators"]["largest_difference_of_losses"] == pytest.approx(0.1)
    assert rows["mpi"]["status"] == "same"


def log_of(rows) -> str:
    head = {"model": "DiT-S/2", "batch": 8, "dtype": "fp32", "rounds": 1, "steps": 2}
    return summary({"bench": "stepwise", "settings": head, "ranks": {"ranks": 1, "cpus": 2}, "stages": rows}).text()


def test_failed_stage_prints_reason_and_next_stage_lacks_previous_speedup() -> None:
    settings = StepwiseSettings(stages=("baseline", "gemm", "operators", "automem"))
    failed = TrainingResult(status="failed", reason="no such thing")
    runs = {"baseline": [ok(4.0)], "gemm": [failed], "operators": [ok(2.0)], "automem": [ok(1.0)]}
    rows = rows_of(settings, runs)
    assert rows[2]["speedup"]["median"] == 2.0
    assert rows[2]["speedup_over_previous"] is None, "the gain of both stages was attributed to the second"
    assert rows[3]["speedup_over_previous"]["median"] == 2.0
    text = log_of(rows)
    assert "failed: no such thing" in text
    line = next(line for line in text.splitlines() if line.startswith("+ AI operators"))
    assert line.split()[-8:] == ["2", "+-", "0", "2", "+-", "0", "-", "5"]


@pytest.mark.parametrize(
    "baseline", [None, [TrainingResult(status="failed", reason="no MPI")], [ok(9.0), TrainingResult(status="oom")]]
)
def test_missing_or_failed_baseline_yields_no_speedup(baseline) -> None:
    settings = StepwiseSettings(stages=("baseline", "gemm", "operators") if baseline else ("gemm", "operators"))
    runs = {"gemm": [ok(4.0)], "operators": [ok(2.0)]} | ({"baseline": baseline} if baseline else {})
    gemm, operators = rows_of(settings, runs)[-2:]
    assert [gemm[name] for name in ("speedup", "speedup_over_previous")] == [None, None]
    assert (operators["speedup"], operators["largest_difference_of_losses"]) == (None, None)
    assert operators["speedup_over_previous"]["median"] == 2.0
    text = log_of([gemm, operators])
    assert "no speedup: the baseline was omitted, or failed" in text
    assert "losses differ" not in text


@pytest.mark.sampled("benches")
@needs_kernels
@pytest.mark.slow
def test_stages_reach_equal_losses_with_different_operator_backends(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path / "none"))
    path = tmp_path / "stepwise.json"
    chosen = ["--stages", "baseline,gemm,operators,automem,tuned", "--rounds", "1", "--steps", "1"]
    assert main(["bench", "stepwise", *TINY, *chosen, "--json", str(path)]) == 0
    rows = {row["name"]: row for row in json.loads(path.read_text())["stages"]}
    assert rows["tuned"]["status"] == "skipped", "that folder contains no tuning"
    served = {name: {row["op"]: row["backend"] for row in rows[name]["operators"]} for name in rows if name != "tuned"}
    assert set(served["baseline"].values()) == {"reference"}
    assert (served["gemm"]["linear"], served["gemm"]["attention"], served["gemm"]["adamw"]) == (
        "c", "reference", "reference",
    )  # fmt: skip
    assert set(served["operators"].values()) == {"c"}
    # Three steps; roundoff x longest product x layers, as in other comparisons of training runs.
    for name in served:
        assert rows[name]["losses"] == pytest.approx(rows["baseline"]["losses"], rel=2**-24 * 256 * 7)
