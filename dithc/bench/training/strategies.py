"""Parallel strategies (table 2): step time, peak memory of the node, bytes between ranks.

Each run is a separate launch. The variants of a cell (model and batch) alternate because they do not fit into memory
together.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from dithc.bench.child_process import message_counter, sum_of
from dithc.bench.environment import circumstances, prepare_threads, require, require_among, require_at_least
from dithc.bench.training import run as processes
from dithc.bench.training.run import RunSettings, TrainingResult, TrainingVariant
from dithc.config import MachineConfig, training
from dithc.core.logging import get_logger, progress
from dithc.core.units import GIB
from dithc.engine.hardware import Machine as Node
from dithc.engine.numa import available_bytes

log = get_logger(__name__)
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
class StrategiesSettings(RunSettings):
    """Settings of the strategy benchmark, described by `dithc bench strategies --help`."""

    models: tuple[str, ...] = ("DiT-S/2", "DiT-B/2", "DiT-L/2", "DiT-XL/2")
    batches: tuple[int, ...] = (8, 16)
    strategies: tuple[str, ...] = (*STRATEGIES, ONE_CLUSTER)
    sharding: training.Sharding = "none"
    memory_limit_gib: float | None = None


def bench_strategies(settings: StrategiesSettings) -> dict[str, Any]:
    """Run the benchmark and return its result for JSON."""
    _check(settings)
    machine, core_plan = prepare_threads(None)
    variants, cluster_text = variants_on(machine, settings.strategies)
    variants = [shard_optimizer(variant, settings.sharding) for variant in variants]
    log.info(cluster_text)
    cells = [(model, batch) for batch in settings.batches for model in settings.models]
    limit_bytes = _limit_bytes(settings)
    limits: dict[str, str] = {}
    rows = []
    total = len(cells) * len(variants) * settings.rounds
    with (
        tempfile.TemporaryDirectory(prefix="dithc-strategies-") as folder,
        progress(total=total, label="strategies", unit="run") as bar,
    ):
        counter = message_counter(Path(folder))
        for model, batch in cells:
            options = settings.run_options(model, batch)
            run = partial(processes.run_training, options=options, limit_bytes=limit_bytes, variables=counter)
            runs = processes.interleaved(variants, settings.rounds, run, bar=bar, label=f"{model} {batch}")
            rows.append(cell(model, batch, runs))
            limits |= {name: results[-1].limit for name, results in runs.items() if results[-1].limit}
    return {
        "bench": "strategies",
        "settings": asdict(settings),
        "clusters": cluster_text,
        "variants": [asdict(variant) for variant in variants],
        "cells": rows,
        "memory_limit": {"bytes": limit_bytes, "asked": settings.memory_limit_gib is not None, "how": limits},
        "counted": COUNTED,
        **circumstances(machine, core_plan),
    }


def variants_on(machine: Node, names: Sequence[str]) -> tuple[list[TrainingVariant], str]:
    """Return ranks and threads of each strategy on this machine, and the definition of clusters."""
    cores = machine.visible_cores
    dies = len({core.die for core in cores}) or 1
    by_cluster: dict[int, list[int]] = {}
    for core in cores:
        by_cluster.setdefault(core.cluster, []).append(core.index)
    clusters = list(by_cluster.values())
    cluster_text = f"{dies} die(s), {len(clusters)} cluster(s) of {min(map(len, clusters))} core(s) or more"
    if len(clusters) == 1 and len(cores) > 1:
        clusters = [[core.index] for core in cores]
        cluster_text = f"one core cluster of {len(cores)} cores: each core counts as a cluster"
    core_cpus = {core.index: [cpu for cpu in core.cpus if cpu in machine.limits.allowed_cpus] for core in cores}
    variants = []
    for name in names:
        if name == ONE_CLUSTER:
            cpus = tuple(cpu for core in clusters[0] for cpu in core_cpus[core])
            variants.append(TrainingVariant(name=name, strategy="cftp", ranks=1, cpus=len(clusters[0]), allowed=cpus))
            continue
        strategy = OVER_GLOO.get(name, name)
        config = MachineConfig.model_validate({"strategy": strategy})
        ranks = config.ranks_on(num_dies=dies, num_clusters=len(clusters))
        over = {"DITHC_COMM_BACKEND": "gloo" if name in OVER_GLOO else "dithc-mpi"}
        threads = max(1, len(cores) // ranks)
        variants.append(TrainingVariant(name=name, strategy=strategy, ranks=ranks, cpus=threads, environment=over))
    return variants, cluster_text


def shard_optimizer(variant: TrainingVariant, sharding: training.Sharding) -> TrainingVariant:
    """Shard the optimizer state of a variant if it has several ranks and its strategy supports sharding."""
    if sharding == "none" or variant.ranks == 1 or variant.strategy == "dp+tp":
        if sharding != "none":
            log.info("%s replicates the optimizer state on each of its %d rank(s)", variant.name, variant.ranks)
        return variant
    return replace(variant, options=(*variant.options, "--sharding", sharding))


def cell(model: str, batch: int, runs: Mapping[str, Sequence[TrainingResult]]) -> dict[str, Any]:
    """Return each variant of a model and batch, and the ratio of cftp to each other variant."""
    rows = {name: processes.row_of(results) for name, results in runs.items()}
    for name, row in rows.items():
        if row["status"] == "ok":
            peaks = [run.peak_pss_bytes for run in runs[name] if run.peak_pss_bytes is not None]
            samples = [run.memory_samples for run in runs[name]]
            row |= {"peak_pss_bytes": max(peaks, default=None), "memory_samples": samples}
            row |= {"sent_each": runs[name][-1].sent_each, **sum_of(runs[name][-1].sent_each)}
    cftp = rows.get("cftp")
    for name, row in rows.items():
        if cftp and name != "cftp" and cftp["status"] == row["status"] == "ok":
            row["cftp_seconds_over"] = processes.time_over(cftp, row)
            cftp_peak, peak = cftp["peak_pss_bytes"], row["peak_pss_bytes"]
            row["cftp_memory_over"] = cftp_peak / peak if cftp_peak and peak else None
    return {"model": model, "batch": batch, "strategies": rows}


def _limit_bytes(settings: StrategiesSettings) -> int | None:
    if settings.memory_limit_gib is not None:
        return int(settings.memory_limit_gib * GIB)
    num_bytes = available_bytes()
    text = "none, available memory unknown" if num_bytes is None else f"{num_bytes / GIB:.1f} GiB (available now)"
    log.info("memory limit: %s", text)
    return num_bytes


def _check(settings: StrategiesSettings) -> None:
    require_among("bench --strategies", settings.strategies, KNOWN)
    limit = settings.memory_limit_gib
    require(limit is None or limit > 0, "bench --memory-limit", limit, "more than 0 GiB")
    require_at_least(settings, rounds=1, warmup=2, steps=1, batches=1)
