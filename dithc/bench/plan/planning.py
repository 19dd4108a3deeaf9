"""Plan of a run of an experiment: its task, measured or described facts, and the record in the results."""

import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dithc.bench.plan.plan_text import TIME_OVER
from dithc.bench.plan.rehearsals import Node, Rehearsals
from dithc.bench.simulate import SimulationSettings, computing_of
from dithc.config import ExperimentConfig, training
from dithc.core.logging import user_error
from dithc.core.units import GIB
from dithc.engine.cost import Links, ModelWorkload, estimates, memory, plans, records
from dithc.engine.hardware import Machine, description, discover_machine
from dithc.engine.memory import file_rates

DEFAULT_BANDS, SHOWN = 13, 10


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Settings of a plan, described by `dithc plan --help`.

    Attributes:
        timed_nodes: nodes of the job that measures.
        results: folder that all nodes can read.
    """

    run: str
    nodes: int = 1
    memory_limit_gib: float | None = None
    seconds: float = 110.0
    machine: Path | None = None
    step: float | Path | None = None
    images_per_node: int | None = None
    link_bandwidth: float | None = None
    timed_nodes: int = 1
    results: Path = Path()
    node_speeds: tuple[tuple[float, int], ...] = ()

    @property
    def speeds(self) -> tuple[tuple[float, float], ...]:
        """Relative speeds and shares of the nodes of each kind, for `PlanFacts`."""
        return tuple((speed, count / self.nodes) for speed, count in self.node_speeds) or ((1.0, 1.0),)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a node, and their sources: what was measured, described and assumed, and skipped measurements."""

    facts: plans.PlanFacts
    measured: list[str] = field(default_factory=list)
    described: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def task_of(experiment: ExperimentConfig, name: str) -> tuple[plans.TrainingTask, tuple[int, int, int]]:
    """Return the task of a run, and the shape (C, h, w) of its latents."""
    run = experiment.entry(experiment.runs, name)
    dataset = experiment.datasets[run.dataset]
    codec = experiment.codecs[dataset.codec]
    side = dataset.tiles.size // codec.downsampling_factor
    channels = codec.channels(len(dataset.band_names or range(DEFAULT_BANDS)))
    tokens = max(1, side // run.model.patch) ** 2
    mode = experiment.machine.checkpoint_mode
    task = plans.TrainingTask(name=name, run=run, tokens=tokens, channels=channels, labels=1, checkpoint_mode=mode)
    return task, (channels, side, side)


def measure(experiment: ExperimentConfig, settings: PlanSettings) -> tuple[estimates.PlanTable, Facts]:
    """Measure arrangements on this node, predict all plans, and time the best ones on the nodes of this job."""
    task, shape = task_of(experiment, settings.run)
    machine = discover_machine()
    links, source = _links(machine, settings)
    if links is None and settings.nodes > 1:
        fix = "pass --link-bandwidth, or --profile with a Slurm profile"
        raise user_error("links between nodes", got="no rate", expected="a rate for several nodes", fix=fix)
    limit = None if settings.memory_limit_gib is None else settings.memory_limit_gib * GIB
    profile = experiment.machine
    node = Node.of(machine, launcher=profile.launcher, memory_bytes=limit, cores=profile.cpus_per_node)
    rehearsals = Rehearsals(task=task, node=node, shape=shape, seconds=settings.seconds, folder=settings.results)
    costs = rehearsals.measure()
    if not costs:
        reasons = "; ".join(dict.fromkeys(rehearsals.skipped.values()))
        fix = "use a node with more memory, or describe it: --machine FILE --step SECONDS"
        if TIME_OVER in reasons:
            fix = "raise --seconds, and start no other programs meanwhile"
        raise user_error("no arrangement can be measured", got=reasons, expected="one short run", fix=fix)
    facts = plans.PlanFacts(
        costs=costs,
        cores=node.cores,
        dies=node.dies,
        memory_bytes=node.memory_bytes,
        files=_files(experiment.machine.memory),
        links=links,
        speeds=settings.speeds,
    )
    table = estimates.rank_plans(task, facts, nodes=settings.nodes)
    table, timed = _timed(table, rehearsals, nodes=settings.nodes, most=settings.timed_nodes)
    found = Facts(
        facts=facts,
        measured=[f"{_label(name)}: micro-batches of 1 and {one.images}" for name, one in costs.items()] + timed,
        described=[source] if source else [],
        assumed=_assumed(),
        skipped=[f"{_label(name)}: {reason}" for name, reason in rehearsals.skipped.items()],
    )
    if rehearsals.short_task.run.model.shape != task.run.model.shape:
        blocks = rehearsals.short_task.run.model.shape[1], task.run.model.shape[1]
        found.assumed.insert(0, f"time proportional to blocks: {blocks[0]} of {blocks[1]} were measured")
    return table, found


def _timed(
    table: estimates.PlanTable, rehearsals: Rehearsals, *, nodes: int, most: int
) -> tuple[estimates.PlanTable, list[str]]:
    """Time the best plans on at most this number of nodes; return the table in the order of corrected seconds, and notes.

    For more nodes than this job has, plans with the same images per rank are timed, and all plans are corrected by the ratio.
    """
    if nodes <= most:
        return rehearsals.time_plans(table), []
    run, notes = table.task.run, list[str]()
    images = run.global_batch_size * most // nodes
    if most > 1 and images >= most:
        task = replace(table.task, run=run.model_copy(update={"global_batch_size": images}))
        rehearsals.time_plans(estimates.rank_plans(task, table.facts, nodes=most))
        table = replace(table, estimates=[replace(one, correction=rehearsals.correction) for one in table.estimates])
        notes.append(
            f"best plans on {most} nodes, {images} images: {rehearsals.correction:.2f} times the predicted time"
        )
    return table, notes


def _files(settings: training.MemoryConfig) -> plans.FileTier | None:
    """Return the file tier of the profile with its measured rate."""
    if settings.spill_folder is None or settings.spill_gib is None:
        return None
    size = int(settings.spill_gib * GIB)
    with tempfile.TemporaryFile(dir=settings.spill_folder) as file:
        rates = file_rates(Path(settings.spill_folder), file.fileno(), size)
    bandwidth = 2 / (1 / rates.write + 1 / rates.read)
    return plans.FileTier(folder=str(settings.spill_folder), rank_bytes=float(size), bandwidth=bandwidth)


def _links(machine: Machine, settings: PlanSettings) -> tuple[Links | None, str]:
    """Return the links between nodes and their source: the machine's description, or a measured bandwidth."""
    if machine.network is not None and settings.link_bandwidth is None:
        return Links.of(machine), f"links between nodes: {machine.described_by or machine.model_name}"
    if settings.link_bandwidth is None:
        return None, ""
    links = Links.assumed(settings.link_bandwidth)
    rate, latency = settings.link_bandwidth / 1e9, links.latency * 1e6
    origin = "measured between two nodes" if settings.timed_nodes > 1 else "given"
    return links, f"links between nodes: {rate:.3g} GB/s ({origin}), {latency:g} us (assumed)"


def describe(experiment: ExperimentConfig, settings: PlanSettings) -> tuple[estimates.PlanTable, Facts]:
    """Predict all plans on described nodes, from the step time of one node."""
    assert settings.machine is not None
    task, _ = task_of(experiment, settings.run)
    machine = description.read(settings.machine)
    dies = max(1, machine.num_dies)
    simulation = SimulationSettings(
        machine=settings.machine,
        models=(task.run.model.preset,),
        step=settings.step,
        images_per_node=settings.images_per_node,
    )
    computing, source = computing_of(simulation, machine, task.run.model.preset)
    operations = task.workload.flops / ModelWorkload.of_preset(task.run.model.preset).flops
    links = Links.of(machine) if machine.network is not None or settings.link_bandwidth is None else Links.assumed()
    links = links if settings.link_bandwidth is None else replace(links, byte=1 / settings.link_bandwidth)
    image = computing.seconds / computing.images * dies * operations  # of a rank, which has a share of the images
    costs = plans.RankCosts(call_seconds=0.0, image_seconds=image, source="described")
    available = sum(tier.memory_bytes for tier in machine.tiers) or machine.memory_bytes
    if settings.memory_limit_gib is not None:
        available = int(settings.memory_limit_gib * GIB)
    facts = plans.PlanFacts(
        costs={("cftp", dies, "none", "none"): costs},
        cores=len(machine.cores),
        dies=dies,
        memory_bytes=available,
        links=links,
        spread=computing.spread,
        speeds=settings.speeds,
    )
    found = Facts(
        facts=facts,
        described=[f"{machine.model_name}: cores, memory, links ({settings.machine})", f"step of a node: {source}"],
        assumed=[*_assumed(), "memory of the process and of an image: closed form", "time proportional to operations"],
        skipped=["dp, dp+tp: no measured step"],
    )
    return estimates.rank_plans(task, facts, nodes=settings.nodes), found


def record_of(table: estimates.PlanTable, found: Facts, *, launcher: str) -> dict[str, Any]:
    """Return a plan as JSON: the best ten plans, rejected plans, sources, and totals of the run."""
    task = table.task
    best, smallest = table.best, estimates.smallest_nodes(task, table.facts)
    record: dict[str, Any] = {
        "run": task.name,
        "network": records.network_settings(task.run),
        "plans": [_row(one, table.facts) for one in estimates.different(table.estimates, SHOWN)],
        "rejected": [{"plan": str(plan), "reason": reason} for plan, reason in table.rejected],
        "smallest_nodes": smallest,
        "node": {"cores": table.facts.cores, "dies": table.facts.dies, "memory_bytes": table.facts.memory_bytes},
        "sources": {name: value for name, value in asdict(found).items() if name != "facts"},
    }
    if best is not None:
        alone = estimates.rank_plans(task, table.facts, nodes=smallest or 1).best
        record["smallest_seconds"] = alone.seconds if alone is not None else None
        record |= {"largest_micro_batch": estimates.largest_micro_batch(best), "whole": whole_run(task, best)}
        record["settings"] = settings_of(best, task.name, launcher, table.facts.files)
    return record


def whole_run(task: plans.TrainingTask, best: estimates.PlanEstimate) -> dict[str, float]:
    """Return days, node-hours, checkpoints and their bytes of a complete run."""
    run = task.run
    seconds = run.steps * best.seconds
    kept = sum(run.keeps(step) for step in range(run.checkpoint_every, run.steps + 1, run.checkpoint_every))
    unshared = memory.rank_memory(run)
    state = memory.FP32_BYTES * run.model.parameters + unshared.optimizer + unshared.averages
    return {
        "seconds": seconds,
        "node_hours": best.plan.nodes * seconds / 3600,
        "written_checkpoints": run.steps // run.checkpoint_every,
        "kept_checkpoints": kept + run.keep_last,
        "disk_bytes": (kept + run.keep_last) * state,
    }


def _row(one: estimates.PlanEstimate, facts: plans.PlanFacts) -> dict[str, Any]:
    plan = one.plan
    return {
        "machine": plan.machine_settings,
        "run": plan.run_settings,
        "ranks": plan.ranks,
        "data_ranks": plans.data_ranks(plan, facts),
        "seconds": one.seconds,
        "interval": one.interval,
        "parts": {"computing": one.computing, "exposed": one.exposed, "stall": one.stall, "saving": one.saving},
        "memory": asdict(one.memory),
        "node_bytes": one.node_bytes,
        "ranks_per_node": one.ranks_per_node,
        "source": one.source,
    }


def _label(name: plans.Arrangement) -> str:
    strategy, ranks, sharding, recompute = name
    more = [sharding] * (sharding != "none") + ["recompute"] * (recompute != "none")
    return ", ".join([f"{strategy} with {ranks} rank(s) per node", *more])


def _assumed() -> list[str]:
    copy, disk = estimates.COPY_BANDWIDTH / 1e9, estimates.DISK_BANDWIDTH / 1e9
    return [f"copies of the state {copy:g} GB/s, checkpoint files {disk:g} GB/s"]


def settings_of(
    best: estimates.PlanEstimate, run: str, launcher: str, files: plans.FileTier | None = None
) -> dict[str, Any]:
    """Return the sections `machine` and `runs` of the choice."""
    launcher = "none" if best.plan.ranks == 1 else "mpiexec" if launcher == "none" else launcher
    settings = {"launcher": launcher, **best.plan.machine_settings}
    if best.spilled_bytes and files is not None:
        data = best.memory.total - best.memory.process - best.spilled_bytes
        settings["memory"] = {"automem": "on", "fast_memory_gib": round(data / GIB, 3), "spill_folder": files.folder}
        settings["memory"]["spill_gib"] = round(files.rank_bytes / GIB, 3)
    return {"machine": settings, "runs": {run: best.plan.run_settings}}
