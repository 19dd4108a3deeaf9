"""All implementations of all-reduce, reduce-scatter and all-gather among the ranks of this machine, interleaved.

Some variants emulate two nodes: the ranks of each half share memory, and MPI carries the messages between the halves.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dithc.bench.child_process import launch_argv, run_child
from dithc.bench.environment import circumstances, require
from dithc.bench.timing import Timing, spread, time_runs
from dithc.core.logging import user_error
from dithc.core.measurements import Measurement, Table, with_deviation
from dithc.core.units import MIB
from dithc.engine.comm import CommConfig, Group
from dithc.engine.hardware import discover_machine, plan_cores

LIMIT_SECONDS = 1200


@dataclass(frozen=True)
class CollectiveVariant:
    """Implementation of the collectives (None: gloo); `emulated_nodes` is the number of emulated nodes."""

    name: str
    config: CommConfig | None = None
    emulated_nodes: int = 1


# No exchange: every rank reads and writes its array once, as any further use of the numbers does.
IN_PLACE = "in place"
VARIANTS = (
    CollectiveVariant(IN_PLACE),
    CollectiveVariant("gloo"),
    CollectiveVariant("mpi blocking", CommConfig(collectives="blocking")),
    CollectiveVariant("iallreduce", CommConfig(collectives="iallreduce")),
    CollectiveVariant("hierarchical fp32", CommConfig()),
    CollectiveVariant("hierarchical bf16", CommConfig(reduce_dtype="bf16")),
    CollectiveVariant("2 nodes fp32", CommConfig(), 2),
    CollectiveVariant("2 nodes bf16", CommConfig(reduce_dtype="bf16"), 2),
)
# (operation, variant, baseline), for the speedup over the baseline.
COMPARED = (
    ("all_reduce", "hierarchical fp32", "gloo"),
    ("all_reduce", "hierarchical fp32", "mpi blocking"),
    ("all_reduce", "hierarchical bf16", "hierarchical fp32"),
    ("all_reduce", IN_PLACE, "hierarchical fp32"),
    ("all_reduce", "2 nodes fp32", "mpi blocking"),
    ("all_reduce", "2 nodes bf16", "2 nodes fp32"),
    ("reduce_scatter", "hierarchical fp32", "gloo"),
    ("all_gather", "hierarchical fp32", "gloo"),
)


@dataclass(frozen=True, kw_only=True)
class CollectivesSettings:
    """Settings of the benchmark, described by `dithc bench collectives --help`."""

    ranks: int = 2
    mib: int = 64
    warmup: int = 2
    rounds: int = 11


def bench_collectives(settings: CollectivesSettings) -> dict[str, Any]:
    """Start the ranks with one compute thread each and return their measurements."""
    is_valid = settings.ranks >= 2 and settings.ranks % 2 == 0
    require(is_valid, "bench collectives --ranks", settings.ranks, "2, 4, ...")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        arguments = [f"--{name}={value}" for name, value in asdict(settings).items()]
        arguments = ["collectives", "--on-ranks", *arguments, "--json", str(out)]
        with run_child(launch_argv(arguments, ranks=settings.ranks, cpus=1)) as child:
            status = child.wait(timeout=LIMIT_SECONDS)
        if status != 0 or not out.exists():
            fix = "see their messages above; run `dithc doctor` to check MPI"
            raise user_error("bench collectives", got=f"status {status}", expected="0", fix=fix)
        machine = discover_machine()
        measured: dict[str, Any] = json.loads(out.read_text())
        return measured | circumstances(machine, plan_cores(machine, ranks_per_node=settings.ranks))


def measure(settings: CollectivesSettings, group: Group) -> dict[str, Any]:
    """Measure on one rank (collective). The slowest rank determines the time of an operation."""
    torch.set_num_threads(1)
    runs = {
        (operation, variant.name): run
        for variant in VARIANTS
        for operation, run in _operations(variant, settings, group).items()
    }
    time_runs(runs, repeats=settings.warmup)
    timings = time_runs(runs, repeats=settings.rounds)
    gathered = group.gather_objects({name: timing.seconds for name, timing in timings.items()})
    slowest = {name: Timing(tuple(map(max, zip(*(one[name] for one in gathered), strict=True)))) for name in timings}
    return {
        "bench": "collectives",
        "settings": asdict(settings),
        "rows": [
            {"operation": operation, "variant": name, "seconds": timing.to_dict()}
            for (operation, name), timing in slowest.items()
        ],
        "speedups": [
            {"operation": operation, "variant": name, "over": base}
            | spread(slowest[operation, base].ratios_to(slowest[operation, name]))
            for operation, name, base in COMPARED
        ],
    }


def collectives_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize each operation of each variant, and the speedups."""
    settings = result["settings"]
    times = [
        [
            row["operation"],
            row["variant"],
            with_deviation({key: 1e3 * row["seconds"][key] for key in ("median", "mad")}),
        ]
        for row in result["rows"]
    ]
    ratios = [[row["operation"], row["variant"], row["over"], with_deviation(row)] for row in result["speedups"]]
    return Measurement(
        title=f"{settings['ranks']} ranks, {settings['mib']} MiB fp32 each, medians of {settings['rounds']} rounds",
        tables=[
            Table(title="Time", head=["Operation", "Variant", "ms"], rows=times, texts=2),
            Table(title="Speedup", head=["Operation", "Variant", "Over", "Speedup"], rows=ratios, texts=3),
        ],
    )


def _operations(
    variant: CollectiveVariant, settings: CollectivesSettings, group: Group
) -> dict[str, Callable[[], None]]:
    """Return the operations of a variant, each followed by a barrier, after one correctness check."""
    import torch.distributed as dist

    backend = "dithc-mpi" if variant.config else "gloo"
    if variant.name == IN_PLACE:
        numbers = torch.zeros(settings.mib * MIB // 4)
        return {"all_reduce": partial(_synchronized, partial(numbers.mul_, 0.5))}
    with (variant.config or CommConfig()).active(), _environment(variant, group):
        process_group = dist.new_group(backend=backend)
    count = settings.mib * MIB // 4 // group.size * group.size
    x, part = torch.zeros(count), torch.zeros(count // group.size)
    shard = x[group.rank * part.numel() :][: part.numel()]

    buffer = shard if variant.config else part
    operations: dict[str, Callable[[], object]] = {
        "all_reduce": partial(dist.all_reduce, x, group=process_group),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, buffer, x, group=process_group),
        "all_gather": partial(dist.all_gather_into_tensor, x, buffer, group=process_group),
    }
    for name, run in operations.items():
        x.fill_(1.0 + group.rank)
        part.fill_(1.0 + group.rank)
        run()
        total = float(sum(range(1, group.size + 1)))
        output = buffer if name == "reduce_scatter" else shard
        expected = 1.0 + group.rank if name == "all_gather" else total
        assert bool((output == expected).all()), f"{variant.name}: {name} is wrong"
    x.zero_()

    dist.barrier()
    return {name: partial(_synchronized, run) for name, run in operations.items()}


def _synchronized(run: Callable[[], object]) -> None:
    import torch.distributed as dist

    run()
    dist.barrier()


@contextmanager
def _environment(variant: CollectiveVariant, group: Group) -> Iterator[None]:
    """Set the environment variables that a process group reads during construction."""
    node = group.rank * variant.emulated_nodes // group.size
    variables = {
        **({"DITHC_NODE_NAME": f"played {node}"} if variant.emulated_nodes > 1 else {}),
        **({"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}),
    }
    previous = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(previous)
