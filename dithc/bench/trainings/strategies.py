"""Parallel strategies (table 2): step time, peak memory of the node, bytes between ranks.

Each run is a separate launch. The variants of a cell (model and batch) alternate because they do not fit into memory
together.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

from dithc.bench.ceilings import Precision
from dithc.bench.record import circumstances, prepare_threads, require_at_least
from dithc.bench.timing import Timing, spread
from dithc.bench.trainings.memory_limit import MemoryLimit
from dithc.bench.trainings.run import Contender, Run, run_once, settled
from dithc.comm import traffic
from dithc.config import Machine, training
from dithc.hardware import Machine as Node
from dithc.log import UserError, logger, problem, progress
from dithc.pages import available_bytes

log = logger(__name__)
GIB = 1 << 30
ONE_CLUSTER = "cftp-1-cluster"
STRATEGIES = get_args(training.StrategyName)
# PyTorch's stock backend for CPUs; all other strategies use dithc-mpi.
OVER_GLOO = {"dp-gloo": "dp", "dp+tp-gloo": "dp+tp"}
KNOWN = (*STRATEGIES, ONE_CLUSTER, *OVER_GLOO)
COUNTED = {
    "tcp_bytes": "bytes sent on all TCP connections of a rank (TCP_INFO; gloo and its store)",
    "mpi_bytes": "bytes passed to MPI (a profiling layer preloaded into the ranks); a single rank never loads MPI",
    "shared_bytes": "bytes written for other ranks into memory shared by the ranks of a node",
    "peak_pss_bytes": "peak of the sum over ranks of their proportional set size (smaps_rollup), sampled during "
    "warm-up steps; without launcher and benchmark",
}


@dataclass(frozen=True, kw_only=True)
class StrategiesSettings:
    """Settings of the strategy benchmark.

    Attributes:
        batches: images per step over all ranks.
        strategies: subset of KNOWN; cftp-1-cluster is cftp on one core cluster, dp-gloo and dp+tp-gloo use PyTorch's
            gloo.
        sharding: optimizer sharding under cftp and dp; dp+tp replicates the state.
        overrides: fields of `model` to change (hidden_size, depth, num_heads).
        rounds: runs of each variant; every second round reverses the order.
        warmup: untimed steps of a run.
        memory_limit_gib: limit for all ranks together; None uses the memory available at the start.
    """

    models: tuple[str, ...] = ("DiT-S/2", "DiT-B/2", "DiT-L/2", "DiT-XL/2")
    batches: tuple[int, ...] = (8, 16)
    strategies: tuple[str, ...] = (*STRATEGIES, ONE_CLUSTER)
    dtype: Precision = "fp32"
    sharding: training.Sharding = "none"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 2
    warmup: int = 2
    steps: int = 3
    memory_limit_gib: float | None = None


def bench_strategies(settings: StrategiesSettings) -> dict[str, Any]:
    """Run the benchmark and return its result for JSON.

    Raises:
        UserError: a strategy is unknown, or a number is below one.
    """
    _check(settings)
    machine, core_plan = prepare_threads(None)
    contenders, said = contenders_on(machine, settings.strategies)
    contenders = [sharded(contender, settings.sharding) for contender in contenders]
    log.info(said)
    cells = [(model, batch) for batch in settings.batches for model in settings.models]
    limit_bytes = _limit_bytes(settings)
    limits: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="dithc-strategies-") as name:
        counter, uncounted = _counter(Path(name))
        total = len(cells) * len(contenders) * settings.rounds
        with progress(total=total, label="strategies", unit="run") as bar:
            rows = []
            for model, batch in cells:
                runs: dict[str, list[Run]] = {contender.name: [] for contender in contenders}
                for contender in turns(contenders, settings.rounds):
                    own = runs[contender.name]
                    if not own or own[-1].status == "ok":  # a failed variant would fail again
                        folder = Path(tempfile.mkdtemp(dir=name))
                        own.append(_run(contender, model, batch, settings, folder, counter, limit_bytes, limits))
                    bar.update(1, now=f"{model} {batch} {contender.name}")
                rows.append(cell(model, batch, contenders, settled(runs)))
    return {
        "bench": "strategies",
        "settings": asdict(settings),
        "clusters": said,
        "contenders": [asdict(contender) for contender in contenders],
        "cells": rows,
        "memory_limit": {"bytes": limit_bytes, "asked": settings.memory_limit_gib is not None, "how": limits},
        "counted": COUNTED | ({"mpi_uncounted": uncounted} if uncounted else {}),
        **circumstances(machine, core_plan),
    }


def contenders_on(machine: Node, names: Sequence[str]) -> tuple[list[Contender], str]:
    """Return ranks and threads of each strategy on this machine, and the definition of clusters."""
    cores = machine.visible_cores
    dies = len({core.die for core in cores}) or 1
    by_cluster: dict[int, list[int]] = {}
    for core in cores:
        by_cluster.setdefault(core.cluster, []).append(core.index)
    clusters = list(by_cluster.values())
    said = f"{dies} die(s), {len(clusters)} cluster(s) of {min(map(len, clusters))} core(s) or more"
    if len(clusters) == 1 and len(cores) > 1:
        clusters = [[core.index] for core in cores]
        said = f"one core cluster of {len(cores)} cores: each core counts as a cluster"
    own = {core.index: [cpu for cpu in core.cpus if cpu in machine.limits.allowed_cpus] for core in cores}
    found = []
    for name in names:
        if name == ONE_CLUSTER:
            cpus = tuple(cpu for core in clusters[0] for cpu in own[core])
            found.append(Contender(name=name, strategy="cftp", ranks=1, cpus=len(clusters[0]), allowed=cpus))
            continue
        strategy = OVER_GLOO.get(name, name)
        chosen = Machine.model_validate({"strategy": strategy})
        ranks = chosen.ranks_on(num_dies=dies, num_clusters=len(clusters))
        over = (("DITHC_BACKEND", "gloo" if name in OVER_GLOO else "dithc-mpi"),)
        threads = max(1, len(cores) // ranks)
        found.append(Contender(name=name, strategy=strategy, ranks=ranks, cpus=threads, environment=over))
    return found, said


def sharded(contender: Contender, sharding: training.Sharding) -> Contender:
    """Shard the optimizer state of a variant if it has several ranks and its strategy supports sharding."""
    if sharding == "none" or contender.ranks == 1 or contender.strategy == "dp+tp":
        if sharding != "none":
            log.info("%s replicates the optimizer state on each of its %d rank(s)", contender.name, contender.ranks)
        return contender
    return replace(contender, words=(*contender.words, "--sharding", sharding))


def turns(contenders: Sequence[Contender], rounds: int) -> Iterator[Contender]:
    """Yield interleaved variants. Every second round is reversed against drift."""
    for turn in range(rounds):
        yield from contenders if turn % 2 == 0 else reversed(contenders)


def cell(model: str, batch: int, contenders: Sequence[Contender], runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return each variant of a model and batch, and the ratio of cftp to each other variant."""
    rows = {contender.name: _row(runs[contender.name]) for contender in contenders}
    own = rows.get("cftp")
    for name, row in rows.items():
        if own and name != "cftp" and own["status"] == row["status"] == "ok":
            times = Timing(tuple(own["seconds"]["all"])), Timing(tuple(row["seconds"]["all"]))
            row["cftp_seconds_over"] = spread(times[0].ratios_to(times[1]))
            peaks = own["peak_pss_bytes"], row["peak_pss_bytes"]
            row["cftp_memory_over"] = peaks[0] / peaks[1] if all(peaks) else None
    return {"model": model, "batch": batch, "strategies": rows}


def _row(runs: Sequence[Run]) -> dict[str, Any]:
    bad = next((run for run in runs if run.status != "ok"), None)
    if bad is not None:
        return {"status": bad.status, "reason": bad.reason}
    peaks = [run.peak_pss_bytes for run in runs if run.peak_pss_bytes is not None]
    return {
        "status": "ok",
        "seconds": Timing(tuple(median(run.seconds) for run in runs)).to_dict(),
        "steps_seconds": [run.seconds for run in runs],
        "peak_pss_bytes": max(peaks) if peaks else None,
        "peak_pss_bytes_rounds": peaks,
        "peak_rss_bytes_each": runs[-1].peak_rss_bytes_each,
        "looks": [run.looks for run in runs],
        "sent_each": runs[-1].sent_each,
        "tcp_bytes": _sum(runs[-1], "tcp_bytes"),
        "mpi_bytes": 0 if len(runs[-1].sent_each) == 1 else _sum(runs[-1], "mpi_bytes"),
        "shared_bytes": _sum(runs[-1], "shared_bytes"),
        "losses": runs[-1].losses,
    }


def _sum(run: Run, name: str) -> float | None:
    found = [rank[name] for rank in run.sent_each]
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _run(
    contender: Contender,
    model: str,
    batch: int,
    settings: StrategiesSettings,
    folder: Path,
    counter: Path | None,
    limit_bytes: int | None,
    limits: dict[str, str],
) -> Run:
    words = ["--model", model, "--batch", str(batch), "--dtype", settings.dtype]
    words += ["--warmup", str(settings.warmup), "--steps", str(settings.steps)]
    words += [f"--override={name}={value}" for name, value in settings.overrides.items()]
    limit = MemoryLimit(limit_bytes, ranks=contender.ranks)
    if limit.how:
        limits[contender.name] = limit.how
    try:
        run = run_once(contender, words, folder=folder, limit=limit, counter=counter)
    finally:
        limit.close()
    if run.status == "ok":
        peak = f"{run.peak_pss_bytes / GIB:.2f} GiB" if run.peak_pss_bytes else "memory not sampled"
        log.info("%s, batch %d, %s: %.3f s, %s", model, batch, contender.name, median(run.seconds), peak)
    else:
        log.warning("%s, batch %d, %s: %s: %s", model, batch, contender.name, run.status, run.reason)
    return run


def _limit_bytes(settings: StrategiesSettings) -> int | None:
    if settings.memory_limit_gib is not None:
        return int(settings.memory_limit_gib * GIB)
    found = available_bytes()
    log.info(
        "memory limit: %s",
        "none, available memory unknown" if found is None else f"{found / GIB:.1f} GiB (available now)",
    )
    return found


def _counter(folder: Path) -> tuple[Path | None, str]:
    """Build the MPI profiling layer. Return it, or the reason of a failure."""
    try:
        return traffic.build_counter(folder), ""
    except UserError as error:
        log.warning("not counting MPI calls: %s", error)
        return None, str(error)


def _check(settings: StrategiesSettings) -> None:
    if not settings.strategies or not set(settings.strategies) <= set(KNOWN):
        got, expected = ",".join(settings.strategies), f"names among {', '.join(KNOWN)}"
        raise problem("bench --strategies", got=got, expected=expected, fix="correct --strategies")
    if settings.memory_limit_gib is not None and settings.memory_limit_gib <= 0:
        given = settings.memory_limit_gib
        raise problem("bench --memory-limit", got=given, expected="more than 0 GiB", fix="correct --memory-limit")
    require_at_least(settings, rounds=1, warmup=2, steps=1, batches=1)
