"""Cells of the paper targets on a node: planned and skipped cells, reasons and predictions."""

from pathlib import Path

import pytest

from dithc.config import ExperimentConfig, load
from dithc.core.logging import UserError
from dithc.core.reproduction import TARGETS
from dithc.workflow import reproduction
from dithc.workflow.reproduction.cost import NodeModel

ROOT = Path(__file__).parents[3]
SMALL, LARGE = NodeModel(cores=2, memory_gib=24.0), NodeModel(cores=96, memory_gib=1000.0)


def planned(node: NodeModel = SMALL, **settings: object) -> list[reproduction.CellJob]:
    return reproduction.plan_cells(ExperimentConfig.model_validate({"paper": settings}), node)


def cells_of(jobs: list[reproduction.CellJob], target: str) -> list[reproduction.CellJob]:
    return [job for job in jobs if job.target == target]


@pytest.mark.parametrize("scale", ["ci", "node", "paper"])
@pytest.mark.parametrize("node", [SMALL, LARGE, NodeModel(cores=1, memory_gib=2.0)])
def test_every_target_has_uniquely_named_cells_at_every_scale(scale: str, node: NodeModel) -> None:
    jobs = planned(node, scale=scale)
    assert jobs == planned(node, scale=scale)
    for target in TARGETS:
        names = [job.name for job in cells_of(jobs, target)]
        assert len(names) == len(set(names))
        assert bool(names) == (target not in ("table1", "fig8"))
    assert all(job.seconds > 0 for job in jobs)
    assert all(job.command.startswith(("dithc ", "DITHC_TUNING_FOLDER=")) for job in jobs)
    for job in jobs:
        assert set(job.after) <= {other.name for other in cells_of(jobs, job.target)}


def test_ci_plan_on_two_cores_lasts_less_than_30_minutes() -> None:
    jobs = planned(scale="ci")
    assert not [job.name for job in jobs if job.skipped]
    assert sum(job.seconds for job in jobs) < 30 * 60


def test_batches_grow_with_the_node_up_to_the_published_batches() -> None:
    small, large = (cells_of(planned(node, scale="node"), "table2") for node in (SMALL, LARGE))
    assert max(job.metadata["batch"] for job in small) < max(job.metadata["batch"] for job in large) <= 224
    assert {job.metadata["batch"] for job in cells_of(planned(LARGE, scale="paper"), "table2")} == {112, 224}
    short = cells_of(planned(SMALL, scale="node", time_budget_hours=0.2), "table2")
    assert max(job.metadata["batch"] for job in short) < max(job.metadata["batch"] for job in small)


def test_cells_beyond_the_time_budget_are_skipped_with_the_reason() -> None:
    jobs = planned(scale="node", time_budget_hours=0.1, targets=["fig9", "table2"])
    done = [job for job in jobs if not job.skipped and job.measures]
    assert sum(job.seconds for job in done) <= 0.1 * 3600
    late = [job for job in jobs if "paper.time_budget_hours" in job.skipped]
    assert late
    for job in jobs:
        skipped = {other.name for other in cells_of(jobs, job.target) if other.skipped}
        assert job.skipped or not skipped.intersection(job.after), "its predecessor does not run"


def test_cells_beyond_the_memory_are_skipped_with_the_sizes() -> None:
    jobs = planned(NodeModel(cores=2, memory_gib=4.0), scale="paper")
    skipped = [job for job in cells_of(jobs, "table3") if job.skipped]
    assert skipped
    assert all("GiB" in job.skipped for job in skipped if not job.after)


def test_paper_files_match_the_planned_cells(tmp_path: Path) -> None:
    experiment = load(ROOT / "config/experiments/paper-ci.yaml")
    files = reproduction.PaperFiles(experiment, root="results/x", cores=2, configurations=["a.yaml", "my file.yaml"])
    assert files.cells("table4") == ["results/x/paper/cells/table4/fp32.json", "results/x/paper/cells/table4/bf16.json"]
    assert files.threads("table4", "fp32") == 2
    assert files.threads("fig10", "simulated-weak") == 1
    assert files.runtime("table4", "fp32") >= 2
    assert files.again("table4") == "snakemake --profile profiles/local table4 --configfile a.yaml 'my file.yaml'"
    with pytest.raises(UserError, match=r"no cell 'fp64' of table4[\s\S]*fp32, bf16"):
        files.job("table4", "fp64")


def test_scaling_cells_request_the_nodes_required_by_the_ranks() -> None:
    machine = {
        "launcher": "srun", "scheduler": "slurm", "nodes": 64, "ranks_per_node": 4, "cpus_per_rank": 38, "cpus_per_node": 152,
        "memory_per_node_mb": 500_000, "max_walltime_minutes": 60,
    }  # fmt: skip
    experiment = ExperimentConfig.model_validate({"paper": {"scale": "paper"}, "machine": machine})
    files = reproduction.PaperFiles(experiment, root="results/x", cores=152, configurations=["x.yaml"])
    weak = {job.name: job for job in cells_of(files.jobs, "fig10")}["measured-xl-2"]
    assert weak.words[weak.words.index("--batch") + 1] == "28", "112 images per node with four ranks"
    assert weak.columns[0] == "1 rank"
    assert weak.columns[-1] == "256 ranks"
    cell = files.job("table4", "fp32")
    assert (weak.nodes, weak.ranks, files.task_cpus("fig10", weak.name)) == (64, 256, 38)
    assert (cell.nodes, cell.ranks, files.task_cpus("table4", "fp32")) == (1, 1, 152)
    assert max(files.runtime(job.target, job.name) for job in files.jobs) <= 60
    strong = [job for job in cells_of(files.jobs, "fig11") if job.measures]
    assert [job.words[job.words.index("--batch") + 1] for job in strong] == ["448", "3072", "16384"]
    ranks = [[int(count) for count in job.words[job.words.index("--ranks") + 1].split(",")] for job in strong]
    assert all(counts[-1] <= 256 for counts in ranks)
    assert ranks[0][0] < ranks[1][0], "more images start on more nodes"
