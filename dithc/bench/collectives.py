"""All-reduce, reduce-scatter and all-gather among the ranks of this machine, by all available implementations,
interleaved.

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

from dithc.bench.child_process import child_of, launch_line
from dithc.bench.environment import circumstances, require
from dithc.bench.timing import Timing, spread, take_turns
from dithc.core.logging import user_error
from dithc.core.summaries import Measurement, Table, with_deviation
from dithc.engine.comm import CommConfig, Group
from dithc.engine.hardware import discover_machine, plan_cores

MIB = 1 << 20
LIMIT_SECONDS = 1200


@dataclass(frozen=True)
class CollectiveVariant:
    """Implementation of the collectives (None: gloo); `played_nodes` is the number of emulated nodes."""

    name: str
    config: CommConfig | None = None
    played_nodes: int = 1


# No exchange: every rank reads and writes its array once, as any further use of the numbers does.
IN_PLACE = "in place"
CONTENDERS = (
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
        words = [f"--{name}={value}" for name, value in asdict(settings).items()]
        words = ["collectives", "--on-ranks", *words, "--json", str(out)]
        with child_of(launch_line(words, ranks=settings.ranks, cpus=1)) as child:
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
        (operation, contender.name): run
        for contender in CONTENDERS
        for operation, run in _operations(contender, settings, group).items()
    }
    take_turns(runs, repeats=settings.warmup)
    own = take_turns(runs, repeats=settings.rounds)
    every = group.gather_objects({name: timing.seconds for name, timing in own.items()})
    slowest = {name: Timing(tuple(map(max, zip(*(one[name] for one in every), strict=True)))) for name in own}
    return {
        "bench": "collectives",
        "settings": asdict(settings),
        "rows": [
            {"operation": operation, "contender": name, "seconds": timing.to_dict()}
            for (operation, name), timing in slowest.items()
        ],
        "speedups": [
            {"operation": operation, "contender": name, "over": base}
            | spread(slowest[operation, base].ratios_to(slowest[operation, name]))
            for operation, name, base in COMPARED
        ],
    }


def collectives_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize each operation of each variant, and the speedups."""
    settings = result["settings"]
    times = [[row["operation"], row["contender"], _milliseconds(row["seconds"])] for row in result["rows"]]
    ratios = [[one["operation"], one["contender"], one["over"], with_deviation(one)] for one in result["speedups"]]
    return Measurement(
        title=f"{settings['ranks']} ranks, {settings['mib']} MiB fp32 each, medians of {settings['rounds']} rounds",
        tables=[
            Table(title="Time", head=["Operation", "Variant", "ms"], rows=times, texts=2),
            Table(title="Speedup", head=["Operation", "Variant", "Over", "Speedup"], rows=ratios, texts=3),
        ],
    )


def _milliseconds(seconds: Mapping[str, float]) -> str:
    return with_deviation({name: 1e3 * seconds[name] for name in ("median", "mad")})


def _operations(
    contender: CollectiveVariant, settings: CollectivesSettings, group: Group
) -> dict[str, Callable[[], None]]:
    """Return the operations of a variant, each followed by a barrier, after one correctness check."""
    import torch.distributed as dist

    backend = "dithc-mpi" if contender.config else "gloo"
    if contender.name == IN_PLACE:
        numbers = torch.zeros(settings.mib * MIB // 4)
        return {"all_reduce": partial(_together, partial(numbers.mul_, 0.5))}
    with (contender.config or CommConfig()).active(), _environment(contender, group):
        over = dist.new_group(backend=backend)
    count = settings.mib * MIB // 4 // group.size * group.size
    x, part = torch.zeros(count), torch.zeros(count // group.size)
    mine = x[group.rank * part.numel() :][: part.numel()]

    own = mine if contender.config else part
    operations: dict[str, Callable[[], object]] = {
        "all_reduce": partial(dist.all_reduce, x, group=over),
        "reduce_scatter": partial(dist.reduce_scatter_tensor, own, x, group=over),
        "all_gather": partial(dist.all_gather_into_tensor, x, own, group=over),
    }
    for name, run in operations.items():
        x.fill_(1.0 + group.rank)
        part.fill_(1.0 + group.rank)
        run()
        total = float(sum(range(1, group.size + 1)))
        found = own if name == "reduce_scatter" else mine
        wanted = 1.0 + group.rank if name == "all_gather" else total
        assert bool((found == wanted).all()), f"{contender.name}: {name} is wrong"
    x.zero_()

    dist.barrier()
    return {name: partial(_together, run) for name, run in operations.items()}


def _together(run: Callable[[], object]) -> None:
    """Execute an operation and wait for all ranks."""
    import torch.distributed as dist

    run()
    dist.barrier()


@contextmanager
def _environment(contender: CollectiveVariant, group: Group) -> Iterator[None]:
    """Set the environment variables that a process group reads during construction."""
    number = group.rank * contender.played_nodes // group.size
    wanted = {
        **({"DITHC_NODE_NAME": f"played {number}"} if contender.played_nodes > 1 else {}),
        **({"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}),
    }
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
