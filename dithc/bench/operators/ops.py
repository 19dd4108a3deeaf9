"""Timing of dithc's and PyTorch's operators, interleaved with the ceilings in the same rounds."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial, reduce
from itertools import product
from operator import add
from typing import Any

import torch

from dithc.bench.environment import circumstances, prepare_threads, require_at_least
from dithc.bench.gemm_libraries import describe_libraries
from dithc.bench.operators.cases import MEMORY_BOUND, OPS, cases
from dithc.bench.operators.settings import OperatorCase, Run, autocast_context
from dithc.bench.resume import MeasurementStopped, current_session
from dithc.bench.rooflines import BandwidthRoofline, FmaRoofline, Precision, multiply_add_ceiling, team_properties
from dithc.bench.timing import Timing, geometric_mean, loops_for, spread, time_runs
from dithc.core.logging import get_logger, progress
from dithc.core.units import MIB
from dithc.engine import hcops

log = get_logger(__name__)

# Each measurement repeats the run for this time, so that the start and the clock have negligible cost.
SECONDS_PER_TIME = 0.005
HCOPS = "hcops"
Ceilings = dict[str, FmaRoofline | BandwidthRoofline | None]


@dataclass(frozen=True, kw_only=True)
class OpsSettings:
    """Settings of the operator benchmark, described by `dithc bench ops --help`."""

    ops: tuple[str, ...] = OPS
    models: tuple[str, ...] = ("DiT-XL/2", "DiT-S/2")
    dtypes: tuple[Precision, ...] = ("fp32", "bf16")
    libraries: tuple[str, ...] = ()
    backend: str | None = None
    size_bytes: int = 256 * MIB
    threads: int | None = None
    rounds: int = 11


def bench_ops(settings: OpsSettings) -> dict[str, Any]:
    """Run the benchmark and return its result for JSON."""
    require_at_least(settings, "bench ops", rounds=1, threads=1, size_bytes=1)
    machine, core_plan = prepare_threads(settings.threads)
    builders = cases(
        settings.ops,
        models=settings.models,
        dtypes=settings.dtypes,
        size_bytes=settings.size_bytes,
        libraries=settings.libraries,
    )
    libraries = describe_libraries(settings.libraries, settings.dtypes)
    for name, dtype in product(settings.libraries, settings.dtypes):
        if libraries[name][dtype]:
            log.warning("skipping %s for %s: %s", name, dtype, libraries[name][dtype])
    # Built once, because their arrays are large.
    ceilings: Ceilings = {f"multiply_add {dtype}": multiply_add_ceiling(dtype) for dtype in settings.dtypes}
    if set(settings.ops) & set(MEMORY_BOUND):
        ceilings["copy"] = BandwidthRoofline(settings.size_bytes)
    rows = []
    with hcops.use(settings.backend) if settings.backend else nullcontext():
        with progress(total=len(builders), label="bench ops", unit="case") as bar:
            for build in builders:
                case = build()
                name = f"{case.group} {case.name} {case.dtype}"
                with suppress(MeasurementStopped):
                    run = partial(_measure, case, ceilings, settings.rounds)
                    rows.append(current_session().unit(f"{name} {case.shape}", run))
                bar.update(1, now=name)
        conditions = circumstances(machine, core_plan)
    cache = max((level.size_bytes for level in machine.caches), default=0)
    return {
        "bench": "ops",
        "settings": asdict(settings) | {"threads": torch.get_num_threads()},
        "groups": summaries(rows),
        "ceilings": _rates(rows),
        "team": team_properties(),
        "libraries": libraries,
        "out_of_cache": {
            "last_level_cache_bytes": cache,
            "copied_bytes": 2 * settings.size_bytes,
            "exceeds_cache": 2 * settings.size_bytes > cache,
            "note": "bytes moved by the copy and by a memory-bound forward pass, compared with the largest cache",
        },
        "outputs": "the timed run allocates every output, as the model does; no variant gets a preallocated output",
        **conditions,
        "cases": rows,
    }


def _rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize each ceiling over all its rounds, in operations or bytes per second."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        if row["ceiling"]:
            rates.setdefault(row["ceiling"]["name"], []).extend(row["ceiling"]["per_second"]["rounds"])
    return {name: spread(values) for name, values in rates.items()}


def _measure(case: OperatorCase, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    limiting = "copy" if case.limit == "copy" else f"multiply_add {case.dtype}"
    ceiling, limit = ceilings[limiting], None
    runs: dict[str, Run] = {f"{name} {part}": run for name, parts in case.runs.items() for part, run in parts.items()}
    with autocast_context(case.dtype):
        loops = loops_for(runs, seconds=SECONDS_PER_TIME)
        timings = time_runs(runs | ({"ceiling": ceiling} if ceiling else {}), repeats=repeats, loops=loops)
    parts = {name: {part: timings[f"{name} {part}"] for part in case.runs[name]} for name in case.runs}
    totals = {name: reduce(add, parts[name].values()) for name in parts}
    if ceiling:
        rates = spread([ceiling.work / seconds for seconds in timings["ceiling"].seconds])
        limit = {"name": limiting, "unit": ceiling.unit, "per_second": rates}
    return {
        "op": case.op,
        "group": case.group,
        "name": case.name,
        "dtype": case.dtype,
        "shape": dict(case.shape),
        "work": {"flop" if case.limit == "multiply_add" else "bytes": case.work, "counted": case.counted},
        "ceiling": limit,
        "variants": {
            name: {
                "seconds": total.to_dict(),
                "parts": {part: timing.to_dict() for part, timing in parts[name].items()},
                "per_second": case.work / total.median,
                "share_of_ceiling": spread(_shares(case, total, limit)) if limit else None,
            }
            for name, total in totals.items()
        },
        "speedup_of_hcops_over": {
            name: spread(total.ratios_to(totals[HCOPS]))
            | {"parts": {part: timing.ratio_to(parts[HCOPS][part]) for part, timing in parts[name].items()}}
            for name, total in totals.items()
            if name != HCOPS
        },
    }


def _shares(case: OperatorCase, total: Timing, limit: Mapping[str, Any]) -> list[float]:
    pairs = zip(total.seconds, limit["per_second"]["rounds"], strict=True)
    return [case.work / seconds / ceiling for seconds, ceiling in pairs]


def summaries(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return geometric means by group and type, and for products also by kind."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["op"] == "gemm":
            groups.setdefault((row["group"], row["dtype"], "all"), []).append(row)
            groups.setdefault((row["group"], row["dtype"], row["name"].split()[-1]), []).append(row)
    return [
        {
            "group": group,
            "dtype": dtype,
            "kind": kind,
            "cases": len(members),
            "share_of_ceiling": {
                name: geometric_mean(row["variants"][name]["share_of_ceiling"]["median"] for row in members)
                for name in members[0]["variants"]
                if members[0]["ceiling"]
            },
            "speedup_of_hcops_over": {
                name: geometric_mean(row["speedup_of_hcops_over"][name]["median"] for row in members)
                for name in members[0]["speedup_of_hcops_over"]
            },
        }
        for (group, dtype, kind), members in groups.items()
    ]
