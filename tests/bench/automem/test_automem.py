"""AutoMem benchmark: runs in fresh processes and interleaved steps. Tests check budgets and losses, not times."""

import json
from typing import Any

import pytest

from dithc.bench import summary
from dithc.bench.automem.training_runs import automem_row
from dithc.bench.training.run import TrainingResult
from dithc.cli import main
from dithc.core.artifacts import outputs
from tests.ranks import needs_kernels

SMALL = ["--override=hidden_size=192", "--override=depth=4", "--override=num_heads=3", "--model", "S/2", "--batch", "8"]
MIB = 1 << 20


def run(*seconds: float, peak: int = 900, losses: tuple[float, ...] = (1.0,), memory: Any = None) -> TrainingResult:
    rank = {"before_bytes": 100} | ({"memory": memory} if memory else {})
    result = {"each_rank": [rank], "grad_norms": [2.0]}
    return TrainingResult(seconds=list(seconds), losses=list(losses), peak_rss_bytes_each=[peak], result=result)


def memory(peak: int, *, stall: tuple[float, ...]) -> dict[str, Any]:
    steps = {"stall_seconds": list(stall), "loaded_bytes": [10.0] * len(stall), "offloaded_bytes": [5.0] * len(stall)}
    return {"tiers": [{"name": "fast", "peak_backed_bytes": peak, "budget_bytes": 400}], "steps": steps, "plan": {}}


def test_managed_row_reports_budget_stalls_and_loss_equality() -> None:
    bare = [run(1.0, 1.0), run(2.0, 2.0)]
    managed = [
        run(1.1, 1.1, memory=memory(400, stall=(0.11, 0.0))),
        run(2.0, 2.0, memory=memory(300, stall=(0.2, 0.4))),
    ]
    row = automem_row("AutoMem", managed, base=bare)
    assert (row["peak_fast_bytes"], row["budget_bytes"], row["within_budget"]) == (400, 400, True)
    assert row["stall_share"]["rounds"] == pytest.approx([0.1, 0.0, 0.1, 0.2])
    assert row["slower"]["rounds"] == pytest.approx([1.1, 1.0])
    assert row["losses_identical"]
    assert automem_row("AutoMem", [run(1.0, memory=memory(401, stall=(0.0,)))])["within_budget"] is False
    other = [run(1.0, losses=(1.0 + 2**-50,)), run(2.0)]
    assert automem_row("AutoMem", other, base=bare)["losses_identical"] is False


def test_table_lists_reasons_and_exceeded_budgets() -> None:
    killed = {"name": "unmanaged", "status": "oom", "reason": "status 137; train: 7 parameters"}
    managed = automem_row("AutoMem", [run(1.0, peak=5 << 28, memory=memory(401, stall=(0.1,)))])
    settings = {
        "model": "DiT-XL/2",
        "batch": 8,
        "dtype": "fp32",
        "memory_limit_fraction": 0.6,
        "rounds": 2,
        "steps": 3,
        "step_rounds": 9,
    }
    part = {"limit_bytes": 3 << 29, "how": "RLIMIT_DATA", "rows": [killed, managed]}
    parts = {"file": part}
    text = summary({"bench": "automem", "settings": settings, "counted": {}, "parts": parts}).text()
    for part_text in ("killed for lack of memory", "1.25 GiB resident", "EXCEEDED", "10.0%"):
        assert part_text in text


@needs_kernels
@pytest.mark.slow
def test_pool_and_resident_steps_preserve_losses_and_fit_the_budget(tmp_path) -> None:
    path = tmp_path / "automem.json"
    arguments = ["--parts", "pool,resident", "--step-models", "S/2", "--override=depth=1", "--override=hidden_size=192"]
    arguments += ["--override=num_heads=3", "--batch", "4", "--step-rounds", "2", "--rounds", "1", "--json", str(path)]
    assert main(["bench", "automem", *arguments]) == 0
    parts = json.loads(path.read_text())["parts"]
    pooled, plain = parts["pool"]["rows"]
    assert plain["losses_identical"]
    # A step allocates 15 MiB of outputs, 3,800 pages. torch's allocator may also reuse memory, so its faults are not a
    # bound. The C library returns torch's other memory, a quarter of that, to the system after some steps.
    assert pooled["page_faults"] < 1900
    unmanaged, resident = parts["resident"]["rows"]
    assert resident["losses_identical"]
    assert resident["resident"], "the plan moved data within a sufficient budget"
    assert resident["peak_fast_bytes"] <= resident["budget_bytes"]
    assert unmanaged["over_first"]["median"] == 1.0


@pytest.mark.sampled("benches")
@needs_kernels
@pytest.mark.slow
def test_training_in_a_memory_budget_preserves_losses_and_fits(tmp_path) -> None:
    path = tmp_path / "automem.json"
    arguments = [
        "--parts",
        "budget,file",
        "--fast-memory-fraction",
        "0.5",
        "--rounds",
        "1",
        "--steps",
        "1",
        "--spill-gib",
        "0.5",
    ]
    arguments += ["--memory-limit-fraction", "0.8"]  # The bare process alone takes 0.6 of the peak of this small model.
    assert main(["bench", "automem", *SMALL, *arguments, "--spill-folder", str(tmp_path), "--json", str(path)]) == 0
    parts = json.loads(path.read_text())["parts"]
    unmanaged, managed = parts["budget"]["rows"]
    assert unmanaged["status"] == managed["status"] == "ok"
    assert managed["losses_identical"]
    assert 0 < managed["peak_fast_bytes"] <= managed["budget_bytes"] <= 0.5 * parts["budget"]["takes_bytes"]
    assert managed["memory"]["plan"]["phases"]
    assert outputs.files_of(tmp_path) == [path], "the file tier left files"
    assert parts["file"]["limit_bytes"] == int(0.8 * parts["file"]["unmanaged_peak_bytes"])
