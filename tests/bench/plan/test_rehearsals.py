"""Tests of rehearsals: costs fitted to known times and memory, and a plan of a small network on this machine."""

import argparse
import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dithc.bench.plan import PlanSettings, describe, fitting, plan_text, planning, rehearsals
from dithc.bench.training import TrainingResult
from dithc.cli import main
from dithc.cli.machine import plan as command
from dithc.config import load_experiment, training
from dithc.core.units import GIB
from dithc.engine.cost import Links, estimates, memory, plans, records

NAME: plans.Arrangement = ("dp", 2, "none", "none")
CALL, IMAGE, UPDATE, WAIT = 0.05, 0.1, 0.03, 0.02


def task_of(preset: str = "DiT-S/2", **settings: object) -> plans.TrainingTask:
    run = training.RunConfig.model_validate({"dataset": "x", "model": {"preset": preset}, **settings})
    return plans.TrainingTask(name="x", run=run, tokens=256)


def result_of(task: plans.TrainingTask, *, process: float, image: float, excess: float = 0.0, large: int = 4) -> dict:
    """Return the JSON of a rehearsal of two ranks with known costs; `excess` lengthens the last backward pass of a step."""

    def step(images: int) -> dict:
        phases = []
        for added in (0.0, excess):
            backward = 0.7 * (CALL + IMAGE * images) + added
            phases += [("batch", 0.0), ("forward", 0.3 * (CALL + IMAGE * images)), ("backward", backward)]
        phases += [("wait for gradients", WAIT), ("update", UPDATE)]
        return {"images": images, "share": 2 * images, "seconds": phases}

    steps = [step(1), step(large)]
    state = memory.rank_memory(task.run, process=0.0).total
    peaks = [{"images": size, "private_bytes": 0, "shared_bytes": 0, "file_bytes": 0} for size in (0, 1, large)]
    for peak in peaks[1:]:
        peak |= {
            "private_bytes": state + process + peak["images"] * image - 20e6,
            "shared_bytes": 10e6,
            "file_bytes": 20e6,
        }
    seconds = [sum(value for _, value in one["seconds"]) for one in steps]
    return {"seconds": seconds, "each_rank": [{"phases": steps, "peaks": peaks}] * 2}


@pytest.mark.parametrize("excess", [0.0, 0.08])
def test_fit_separates_calls_images_update_and_exchange(excess):
    result = result_of(task_of(), process=4e8, image=9e7, excess=excess)
    found = fitting.time_costs(result, NAME, sizes=[1, 4], tensor_ranks=1)
    expected = {
        "call_seconds": CALL,
        "image_seconds": IMAGE,
        "update_seconds": UPDATE,
        "exposed_seconds": WAIT + excess,
    }
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    assert found.forward_share == pytest.approx(0.3)


def test_times_of_a_run_with_recomputation_are_those_without_it():
    result = result_of(task_of(), process=4e8, image=9e7)
    found = fitting.time_costs(result, (*NAME[:3], "block"), sizes=[1, 4], tensor_ranks=1)
    assert found.forward_share == pytest.approx(0.3 / 0.7), "0.3 of the time repeats the forward pass"
    assert found.seconds(4) == pytest.approx(0.7 * (CALL + 4 * IMAGE))
    assert fitting.derived(found, (*NAME[:3], "block")).seconds(4) == pytest.approx(CALL + 4 * IMAGE)


def test_delays_in_proportion_to_the_work_belong_to_micro_batches():
    result = result_of(task_of(), process=4e8, image=9e7)
    result["seconds"] = [1.1 * 2 * (CALL + IMAGE * size) + UPDATE + WAIT for size in (1, 4)]
    found = fitting.time_costs(result, NAME, sizes=[1, 4], tensor_ranks=1)
    assert found.seconds(4) == pytest.approx(1.1 * (CALL + 4 * IMAGE))
    assert found.exposed_seconds == pytest.approx(WAIT)


def test_shards_divide_the_update():
    found = fitting.time_costs(result_of(task_of(), process=4e8, image=9e7), NAME, sizes=[1, 4], tensor_ranks=1)
    sharded = fitting.derived(found, (*NAME[:2], "zero1", NAME[3]))
    assert sharded == replace(found, update_seconds=UPDATE / 2)


def test_fit_finds_memory_of_the_process_and_of_an_image():
    times = plans.RankCosts(call_seconds=CALL, image_seconds=IMAGE)
    result = result_of(task_of(), process=4e8, image=9e7)
    found = fitting.with_memory(times, result, task_of(), NAME, sizes=[1, 4], tensor_ranks=1)
    assert found.image_bytes == pytest.approx(9e7)
    state = memory.rank_memory(task_of().run, process=0.0).total
    exact = 4e8 - 20e6 + 10e6 + 20e6 / 2  # two ranks share the pages of files
    margin = fitting.MEMORY_MARGIN - 1
    assert found.process_bytes == pytest.approx(exact + margin * (exact + state + 4 * 9e7))


def test_memory_of_an_image_is_common_to_all_measurements_and_exact_at_the_measured_size():
    task, node = task_of(), rehearsals.Node(2, 1, 1, 8 * GIB)
    form = memory.image_bytes(task.run, 256)
    cost = plans.RankCosts(call_seconds=0.0, image_seconds=0.1, images=4, process_bytes=4e8)
    costs = {("cftp", 1, "none", "none"): replace(cost, image_bytes=0.8 * form), NAME: replace(cost, image_bytes=form)}
    shared = "dp+tp", 2, "none", "none"
    costs[shared] = replace(cost, image_bytes=0.5 * form)
    found = fitting.with_common_images(costs, task, node.tensor_ranks)
    assert found.pop(shared).image_bytes == pytest.approx(0.5 * form), "a separate ratio"
    for name, one in found.items():
        assert one.image_bytes == pytest.approx(0.9 * form)
        before = costs[name]
        assert one.process_bytes + 4 * one.image_bytes == pytest.approx(before.process_bytes + 4 * before.image_bytes)


@pytest.mark.parametrize(("preset", "blocks"), [("DiT-S/2", 5), ("DiT-B/2", 2), ("DiT-XL/2", 2)])
def test_large_networks_are_rehearsed_with_few_blocks_and_scaled(preset, blocks):
    task = task_of(preset)
    short = fitting.shortened(task)
    assert short.run.model.shape[1] == blocks
    cost = plans.RankCosts(call_seconds=0.1, image_seconds=1.0, update_seconds=1.0, image_bytes=1e8)
    (found,) = fitting.scaled({NAME: cost}, short, task).values()
    assert found.image_seconds == task.workload.flops / short.workload.flops
    assert found.update_seconds == task.run.model.parameters / short.run.model.parameters
    assert found.image_bytes / 1e8 == pytest.approx(
        memory.image_bytes(task.run, 256) / memory.image_bytes(short.run, 256)
    )


@pytest.mark.parametrize(
    ("node", "ranks"),
    [
        (rehearsals.Node(1, 1, 1, GIB), [("cftp", 1)]),
        (rehearsals.Node(2, 1, 1, GIB), [("cftp", 1), ("dp", 2), ("dp+tp", 2)]),
        (rehearsals.Node(64, 1, 1, GIB), [("cftp", 1), ("dp", 2), ("dp", 4), ("dp+tp", 2)]),
        (rehearsals.Node(32, 2, 8, GIB), [("cftp", 2), ("dp", 8), ("dp+tp", 8)]),
    ],
)
def test_ranks_of_rehearsals_follow_dies_and_clusters(node, ranks):
    assert [launch[0][:2] for launch in node.launches()] == ranks


def test_text_contains_choice_differences_rejections_and_sources():
    cost = plans.RankCosts(call_seconds=0.0, image_seconds=0.1)
    facts = plans.PlanFacts(costs={("cftp", 1, "none", "none"): cost}, cores=2, memory_bytes=8 * GIB)
    table = estimates.rank_plans(task_of(global_batch_size=4, steps=1000), facts)
    record = {
        "whole": {
            "seconds": 7200.0,
            "node_hours": 2.0,
            "written_checkpoints": 10,
            "kept_checkpoints": 3,
            "disk_bytes": GIB,
        },
        "largest_micro_batch": 40,
        "smallest_nodes": 1,
        "sources": {"measured": ["a"], "described": [], "assumed": ["b"], "skipped": []},
    }
    text = plan_text.format_plan(table, record)
    for part in (
        "1 rank x 2 cores, cftp, micro-batch 4",
        "chosen",
        "rejected ",
        "larger ",
        "cftp: each rank has all weights",
        "sharding requires several ranks",
        "2 hours",
    ):
        assert part in text
    assert "measured: a" in text
    assert "described" not in text


def test_plans_of_equal_time_and_memory_share_a_line():
    cost = plans.RankCosts(call_seconds=0.0, image_seconds=0.1)
    costs = {("cftp", 1, "none", "none"): cost, ("dp", 1, "none", "none"): cost}
    table = estimates.rank_plans(
        task_of(global_batch_size=1), plans.PlanFacts(costs=costs, cores=2, memory_bytes=8 * GIB)
    )
    text = "\n".join(plan_text._plans(table, table.best))
    assert "as fast, with as much memory: dp" in text


def test_ratio_on_two_nodes_corrects_plans_of_more_nodes(monkeypatch):
    cost = plans.RankCosts(call_seconds=0.0, image_seconds=0.1)
    facts = plans.PlanFacts(costs={("cftp", 1, "none", "none"): cost}, cores=1, links=Links.assumed())
    task = task_of(global_batch_size=32)
    table = estimates.rank_plans(task, facts, nodes=8)
    node = rehearsals.Node(1, 1, 1, GIB)
    measuring = rehearsals.Rehearsals(task=task, node=node, shape=(4, 32, 32), seconds=60.0)
    sizes = []

    def run_in_turns(runs, **_):
        (run,) = runs  # jobs of several nodes run one at a time
        nodes, batch = run.variant.nodes, int(run.options[run.options.index("--batch") + 1])
        sizes.append((run.variant.ranks, batch, nodes))
        estimate = estimates.rank_plans(task_of(global_batch_size=batch), facts, nodes=nodes).best
        peak = {"private_bytes": GIB, "shared_bytes": 0, "file_bytes": 0}
        result = {"each_rank": [{"peaks": [peak]}] * run.variant.ranks}
        return [TrainingResult(seconds=[2 * estimate.predicted] * 3, result=result)]

    monkeypatch.setattr(rehearsals, "run_in_turns", run_in_turns)
    corrected, (note,) = planning._timed(table, measuring, nodes=8, most=2)
    assert set(sizes) == {(2, 8, 2)}, "as many images per rank as on eight nodes"
    assert corrected.best.seconds == pytest.approx(2 * table.best.seconds, rel=0.02)
    assert note.startswith("best plans on 2 nodes, 8 images: 2.0")
    assert planning._timed(table, measuring, nodes=8, most=1) == (table, [])


def test_recomputation_alone_is_measured_where_nothing_else_fits_into_memory(monkeypatch):
    task, name = task_of(global_batch_size=4), ("cftp", 1, "none", "block")
    short = fitting.shortened(task)
    needs = [memory.rank_memory(short.run, images=2, tokens=256, recompute=one).total for one in ("block", "none")]
    node = rehearsals.Node(1, 1, 1, sum(needs) / 2, flops=1.5e10)  # time for a micro-batch of two images
    measuring = rehearsals.Rehearsals(task=task, node=node, shape=(4, 32, 32))

    def run_in_turns(runs, **_):
        ((settings,),) = (run.settings for run in runs)
        assert settings["recompute"] == "block"
        _, large = settings["micro_batches"]
        result = result_of(short, process=4e8, image=9e7, large=large)
        return [TrainingResult(seconds=result["seconds"], result={"sequence": [result]})]

    monkeypatch.setattr(rehearsals, "run_in_turns", run_in_turns)
    assert list(measuring.measure()) == [name]
    assert list(measuring.skipped) == [("cftp", 1, "none", "none")]
    operations = task.workload.flops / short.workload.flops
    assert measuring.costs[name].seconds(4) == pytest.approx(operations * (CALL + 4 * IMAGE))


def test_timed_plan_corrects_all_seconds_and_its_own_memory(monkeypatch):
    cost = plans.RankCosts(call_seconds=0.0, image_seconds=0.1, process_bytes=4e8)
    costs: dict = {("cftp", 1, "none", "none"): cost, NAME: replace(cost, image_seconds=0.3)}
    costs[*NAME[:3], "block"] = replace(cost, image_seconds=0.4)
    table = estimates.rank_plans(
        task_of(global_batch_size=4), plans.PlanFacts(costs=costs, cores=2, memory_bytes=8 * GIB)
    )
    node = rehearsals.Node(2, 1, 1, 8 * GIB)
    measuring = rehearsals.Rehearsals(task=table.task, node=node, shape=(4, 32, 32), seconds=60.0)
    before = {one.plan: one for one in table.estimates}

    def run_in_turns(runs, **_):
        (run,) = runs  # the plans with two ranks are too slow
        known = table.best.memory  # whose snapshots for checkpoints a timed run does not take
        peak = {"private_bytes": known.total - known.snapshot + 1e8, "shared_bytes": 0, "file_bytes": 0}
        result = {"each_rank": [{"peaks": [peak]}] * run.variant.ranks}
        return [TrainingResult(seconds=[1.2 * table.best.predicted] * 3, result=result)]

    monkeypatch.setattr(rehearsals, "run_in_turns", run_in_turns)
    found = measuring.time_plans(table)
    ratio = 1.2**rehearsals.TIMED_WEIGHT
    (timed,) = (one for one in found.estimates if one.source == "timed")
    assert timed.plan == table.best.plan
    assert timed.seconds == pytest.approx(ratio * table.best.seconds), "between timed and predicted seconds"
    assert sum(getattr(timed, name) for name in estimates.PARTS) == pytest.approx(timed.seconds)
    for one in found.estimates:
        assert one.seconds == pytest.approx(ratio * before[one.plan].seconds)
        added = 1e8 if one is timed else 0.0
        assert one.memory.total == pytest.approx(before[one.plan].memory.total + added)


@pytest.mark.parametrize(
    ("gib", "groups"), [(2.0, [["a", "b"], ["c"]]), (3.0, [["a", "b", "c"]]), (0.5, [["a"], ["b"], ["c"]])]
)
def test_runs_exist_together_if_their_memory_fits(gib, groups):
    node = rehearsals.Node(1, 1, 1, gib * GIB)
    measuring = rehearsals.Rehearsals(task=task_of(), node=node, shape=(4, 32, 32))
    start = time.monotonic()
    found = list(measuring._groups(["a", "b", "c"], lambda _: float(GIB), until=start + 30))
    assert [group for group, _ in found] == groups
    assert found[0][1] - start == pytest.approx(30 * len(groups[0]) / 3, abs=1), (
        "time in proportion to the number of runs"
    )
    assert found[-1][1] - start == pytest.approx(30, abs=1)


EXPERIMENT = """
name: small
datasets:
  a:
    title: A
    source: {kind: image-folder, size: 32, synthetic: {scenes: 2, size: 64, classes: 1}}
    tiles: {size: 32}
    rendering: {bands: [R, G, B], low: 0, high: 255}
    codec: pixels
codecs: {pixels: {kind: pixel}}
runs:
  a: {dataset: a, model: {preset: DiT-S/4, hidden_size: 64, depth: 2, num_heads: 2}, steps: 20, global_batch_size: 4,
      checkpoint_every: 10}
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_plan_on_this_machine_is_recorded_and_used_for_requests(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(EXPERIMENT)
    line = ["plan", "--config", "a.yaml", "--run", "a", "--seconds", "60", "--json", "plan.json", "--write"]
    assert main(line) == 0
    plan = json.loads(Path("plan.json").read_text())
    assert plan["plans"][0]["source"] == "timed"
    measured = {row["machine"]["strategy"] for row in plan["plans"]}
    assert "cftp" in measured
    assert set(plan["settings"]) == {"machine", "runs"}
    assert records.read_plan(Path("results/small/plans/a.json"))["run"] == "a"
    out = capfd.readouterr().out
    assert "chosen" in out
    assert "dithc run --profile profiles/local --configfile a.yaml plan-a.yaml" in out
    from dithc.workflow.jobs.sizing import planned

    experiment = load_experiment([Path("a.yaml"), Path("plan-a.yaml")])
    needs = planned(experiment, "a")
    assert needs is not None
    assert needs.memory_mb == pytest.approx(1.05 * plan["plans"][0]["node_bytes"] / 1e6, abs=100)


def test_plan_without_time_for_all_kinds_does_not_replace_a_longer_one(tmp_path: Path) -> None:
    path = records.plan_path(tmp_path, "a")
    sources = {"measured": ["cftp", "dp"], "skipped": []}
    longer = {"network": {"dtype": "fp32"}, "node": {"cores": 2}, "plans": [{}], "sources": sources}
    shorter = longer | {"sources": {"measured": ["cftp"], "skipped": [f"dp: {plan_text.TIME_OVER}"]}}
    args = argparse.Namespace(machine=None)
    assert command._reason_against_storing(args, shorter, path) is None, "there is no earlier plan"
    records.write_plan(path, longer)
    assert "raise --seconds" in (command._reason_against_storing(args, shorter, path) or "")
    assert command._reason_against_storing(args, longer, path) is None
    assert command._reason_against_storing(args, shorter | {"network": {"dtype": "bf16"}}, path) is None


def test_limit_below_every_arrangement_is_an_error_with_the_need(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(EXPERIMENT)
    assert main(["plan", "--config", "a.yaml", "--run", "a", "--memory-limit", "0.01"]) == 2
    assert "0.01 GiB are free" in capsys.readouterr().err


LX2 = Path(__file__).parents[3] / "profiles/machines/lx2.yaml"


def test_described_nodes_need_no_measurement(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(EXPERIMENT.replace("global_batch_size: 4", "global_batch_size: 16384"))
    line = ["plan", "--config", "a.yaml", "--run", "a", "--machine", str(LX2), "--step", "2.48", "--nodes", "1024"]
    assert main([*line, "--json", "plan.json"]) == 0
    plan = json.loads(Path("plan.json").read_text())
    assert plan["plans"][0]["ranks"] == 4096
    assert plan["smallest_nodes"] == 1
    assert "LX2" in capsys.readouterr().out


def test_described_time_is_proportional_to_the_operations_of_the_network(tmp_path: Path) -> None:
    seconds = {}
    for depth in (2, 4):
        (tmp_path / "a.yaml").write_text(EXPERIMENT.replace("depth: 2", f"depth: {depth}"))
        settings = PlanSettings(run="a", machine=LX2, step=2.48)
        table, _ = describe(load_experiment([tmp_path / "a.yaml"]), settings)
        assert table.best is not None
        seconds[depth] = table.best.computing / table.task.workload.flops
    assert seconds[2] == pytest.approx(seconds[4])


@pytest.mark.parametrize(
    "options",
    [["--step", "3"], ["--nodes", "0"], ["--images-per-node", "4"], ["--nodes", "2"], ["--memory-limit", "nan"]],
)
def test_invalid_options_are_errors(tmp_path: Path, monkeypatch, capsys, options) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(EXPERIMENT)
    with suppress(SystemExit):
        assert main(["plan", "--config", "a.yaml", "--run", "a", *options]) == 2
    assert "fix:" in capsys.readouterr().err
