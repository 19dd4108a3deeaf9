"""`dithc bench strategies`, `scaling`, `stepwise`, `automem` and `collectives`: interleaved measurements in child processes."""

import argparse
from pathlib import Path

from dithc.cli.bench.arguments import Benchmark, add_json, add_model, add_override, add_steps, preset, settings_of, tell


def _add_strategies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default="S/2,B/2,L/2,XL/2", help="presets, with or without DiT- (default all four)")
    parser.add_argument("--batches", default="8,16", help="images per step over all ranks (default 8,16)")
    parser.add_argument(
        "--strategies",
        default="cftp,dp,dp+tp,cftp-1-cluster",
        help="strategies; also dp-gloo and dp+tp-gloo with PyTorch's gloo (default cftp,dp,dp+tp,cftp-1-cluster)",
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")
    parser.add_argument(
        "--sharding",
        choices=("none", "zero1"),
        default="none",
        help="sharding of the optimizer state, for cftp and dp (default none)",
    )
    add_override(parser)
    add_steps(parser, rounds=2, of="variant")
    parser.add_argument(
        "--memory-limit",
        type=float,
        metavar="GIB",
        help="limit over all ranks of a run; a run above it is shown as `-` (default: free memory)",
    )
    add_json(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "--weak", dest="mode", action="store_const", const="weak", help="constant images per rank (figure 10)"
    )
    mode.add_argument(
        "--strong", dest="mode", action="store_const", const="strong", help="constant images over all ranks (figure 11)"
    )
    parser.add_argument("--models", default="B/2", help="presets, with or without DiT- (default B/2)")
    parser.add_argument("--ranks", default="1,2", help="counts of ranks, ascending (default 1,2)")
    parser.add_argument(
        "--batch", type=int, default=8, help="images per step: of one rank (weak), of all ranks (strong) (default 8)"
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")
    add_override(parser)
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), default="cftp", help="(default cftp)")
    add_steps(parser, rounds=2, of="rank count")
    parser.add_argument(
        "--no-communication-baseline",
        action="store_true",
        help="also time the same step without communication, in pairs within each run of several ranks",
    )
    parser.add_argument("--launcher", choices=("mpiexec", "srun"), default="mpiexec", help="(default mpiexec)")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks per node (default: all on this node)")
    parser.add_argument("--cpus", type=int, help="cores per rank (default: equal shares of this machine's cores)")
    add_json(parser)


def _add_stepwise(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--ranks", type=int, default=1, help="ranks to start on this machine (default 1)")
    parser.add_argument("--stages", help="stages among baseline, gemm, mpi, operators, automem, tuned (default: all)")
    parser.add_argument(
        "--tune", action="store_true", help="tune the matrix products first, as `dithc tune-kernels` does"
    )
    add_steps(parser, rounds=3, of="stage")
    add_json(parser)


def _stepwise(args: argparse.Namespace) -> int:
    from dithc.bench import training

    stepwise = training.stepwise
    settings = settings_of(stepwise.StepwiseSettings, args, model=preset(args.model), stages=args.stages or None)
    result = stepwise.bench_stepwise(settings)
    return tell(result, args.json, result["stages"])


def _add_collectives(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start here, one thread each (default 2)")
    parser.add_argument("--mib", type=int, default=64, help="size of the fp32 buffer on each rank (default 64)")
    parser.add_argument("--warmup", type=int, default=2, help="untimed rounds (default 2)")
    parser.add_argument("--rounds", type=int, default=11, help="timed rounds (default 11)")
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    add_json(parser)


def _strategies(args: argparse.Namespace) -> int:
    from dithc.bench import training

    settings = settings_of(
        training.strategies.StrategiesSettings,
        args,
        models=tuple(map(preset, args.models.split(","))),
        batches=tuple(map(int, args.batches.split(","))),
        memory_limit_gib=args.memory_limit,
    )
    result = training.strategies.bench_strategies(settings)
    rows = [row for one in result["cells"] for row in one["strategies"].values()]
    return tell(result, args.json, rows)


def _scaling(args: argparse.Namespace) -> int:
    from dithc.bench import training

    beside = (
        args.json.resolve().parent if args.json and args.ranks_per_node else None
    )  # a shared folder, because other nodes read it
    settings = settings_of(
        training.scaling.ScalingSettings,
        args,
        models=tuple(map(preset, args.models.split(","))),
        ranks=tuple(map(int, args.ranks.split(","))),
    )
    result = training.scaling.bench_scaling(settings, folder=beside)
    return tell(result, args.json, [point for curve in result["curves"] for point in curve["points"]])


def _collectives(args: argparse.Namespace) -> int:
    """Start the ranks, or run one of them with `--on-ranks`."""
    import json

    from dithc.bench import collectives
    from dithc.cli.distributed import ranks
    from dithc.config import ExperimentConfig
    from dithc.core.artifacts import outputs

    settings = settings_of(collectives.CollectivesSettings, args)
    if args.on_ranks:
        with ranks(
            ExperimentConfig(), expected=None, timeout_seconds=60
        ) as group:  # on the cores that a training run would have
            result = collectives.measure(settings, group)
            if group.rank == 0 and args.json:
                outputs.write(args.json, json.dumps(result) + "\n")
        return 0
    result = collectives.bench_collectives(settings)
    return tell(result, args.json, [])


STRATEGIES = Benchmark(
    "training runs with cftp, dp, dp+tp: time, memory, bytes (table 2)",
    "dithc bench strategies --models S/2,B/2 --batches 8 --json strategies.json",
    _add_strategies,
    _strategies,
)
SCALING = Benchmark(
    "training on increasing numbers of ranks (figures 10 and 11)",
    "dithc bench scaling --weak --models S/2 --ranks 1,2 --no-communication-baseline --json weak.json",
    _add_scaling,
    _scaling,
)
STEPWISE = Benchmark(
    "training with dithc's components added one by one (figure 9)",
    "dithc bench stepwise --model S/2 --rounds 2 --json stepwise.json",
    _add_stepwise,
    _stepwise,
)
COLLECTIVES = Benchmark(
    "all-reduce by dithc-mpi in its modes, MPI and gloo",
    "dithc bench collectives --ranks 2 --mib 16 --json collectives.json",
    _add_collectives,
    _collectives,
)


PARTS = "budget,file,largest-batch,pool,resident"


def _add_automem(parser: argparse.ArgumentParser) -> None:
    add_model(parser, default="DiT-XL/2")
    parser.add_argument("--only", default=PARTS, help=f"parts to measure (default {PARTS})")
    parser.add_argument(
        "--budget", type=float, default=0.4, help="budget of the fastest tier, relative to unmanaged use (0.4)"
    )
    parser.add_argument(
        "--limit", type=float, default=0.6, help="process limit in `file`, relative to unmanaged use (0.6)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(), metavar="DIR", help="folder of the file tier (default: .)"
    )
    parser.add_argument("--spill-gib", type=float, default=16.0, help="size of the file tier (default 16)")
    parser.add_argument("--memory", type=float, default=24.0, metavar="GIB", help="limit of `largest-batch` (24)")
    parser.add_argument("--most", type=int, default=64, help="largest batch to try (default 64)")
    parser.add_argument("--step-models", default="S/2,B/2", help="presets of `pool` and `resident` (default S/2,B/2)")
    parser.add_argument("--repeats", type=int, default=15, help="steps per variant in `pool` and `resident` (15)")
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    add_steps(parser, rounds=2, of="variant", warmup=3)
    add_json(parser)


def _automem(args: argparse.Namespace) -> int:
    from dithc.bench import automem

    models = tuple(map(preset, args.step_models.split(",")))
    settings = settings_of(
        automem.AutoMemSettings, args, model=preset(args.model), memory_gib=args.memory, step_models=models
    )
    result = automem.bench_automem(settings)
    return tell(result, args.json, [row for part in result["parts"].values() for row in part["rows"]])


AUTOMEM = Benchmark(
    "training in less memory: budgets, a file tier, the largest batch; the memory pool",
    "dithc bench automem --model S/2 --only budget,file --json automem.json",
    _add_automem,
    _automem,
)
