"""`dithc bench strategies`, `scaling`, `stepwise` and `automem`: interleaved measurements in child processes."""

import argparse
from pathlib import Path

from dithc.cli.bench.arguments import (
    Benchmark,
    add_choice,
    add_dtype,
    add_model,
    add_models,
    add_option,
    add_steps,
    emit,
    numbers,
    presets,
    runner,
    settings_of,
)


def _add_strategies(parser: argparse.ArgumentParser) -> None:
    add_models(parser, "S/2,B/2,L/2,XL/2")
    add_option(parser, "--batches", "8,16", "images per step over all ranks", type=numbers)
    strategies = "strategies; also dp-gloo and dp+tp-gloo with PyTorch's gloo"
    add_option(parser, "--strategies", "cftp,dp,dp+tp,cftp-1-cluster", strategies)
    add_choice(parser, "--sharding", ("none", "node", "zero1", "zero2"), "of the optimizer state, for cftp and dp")
    limit = "limit over all ranks of a run; a run above it is shown as `-` (default: free memory)"
    parser.add_argument("--memory-limit", type=float, dest="memory_limit_gib", metavar="GIB", help=limit)
    add_steps(parser, rounds=2, unit="variant")


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group(required=True)
    for name, constant in (("weak", "per rank (figure 10)"), ("strong", "over all ranks (figure 11)")):
        text = f"constant images {constant}"
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=text)
    add_models(parser, "B/2")
    add_option(parser, "--ranks", "1,2", "counts of ranks, ascending", type=numbers)
    add_option(parser, "--batch", 8, "images per step: of one rank (weak), of all ranks (strong)")
    add_choice(parser, "--strategy", ("cftp", "dp", "dp+tp"))
    baseline = "also time the same step without communication, in pairs within each run of several ranks"
    parser.add_argument("--no-communication-baseline", action="store_true", help=baseline)
    add_choice(parser, "--launcher", ("mpiexec", "srun"))
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks per node (default: all on this node)")
    parser.add_argument(
        "--cpus-per-rank", type=int, help="cores per rank (default: equal shares of this machine's cores)"
    )
    add_steps(parser, rounds=2, unit="rank count")


def _add_stepwise(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_dtype(parser)
    add_option(parser, "--ranks", 1, "ranks to start on this machine")
    parser.add_argument("--stages", help="stages among baseline, gemm, mpi, operators, automem, tuned (default: all)")
    tune = "tune the matrix products first, as `dithc tune-kernels` does"
    parser.add_argument("--tune", action="store_true", help=tune)
    add_steps(parser, rounds=3, unit="stage")


def _add_automem(parser: argparse.ArgumentParser) -> None:
    add_model(parser, default="DiT-XL/2")
    add_dtype(parser)
    parser.add_argument("--parts", help="parts among budget, file, pool, resident (default: all)")
    add_option(parser, "--fast-memory-fraction", 0.4, "budget of the fastest tier, relative to unmanaged use")
    add_option(parser, "--memory-limit-fraction", 0.6, "process limit in `file`, relative to unmanaged use")
    folder = "folder of the file tier (default: .)"
    parser.add_argument("--spill-folder", type=Path, default=Path(), metavar="DIR", help=folder)
    add_option(parser, "--spill-gib", 16.0, "size of the file tier")
    add_option(parser, "--step-models", "S/2,B/2", "presets of `pool` and `resident`", type=presets)
    add_option(parser, "--step-rounds", 15, "steps per variant in `pool` and `resident`")
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    add_steps(parser, rounds=2, unit="variant", warmup=3)


def _scaling(args: argparse.Namespace) -> int:
    from dithc.bench import training

    settings = settings_of(training.scaling.ScalingSettings, args)
    # Other nodes read the files of the runs, so that they are in a shared folder.
    parent = args.json.resolve().parent if args.json and args.ranks_per_node else None
    result = training.scaling.bench_scaling(settings, folder=parent)
    return emit(result, args.json, [point for curve in result["curves"] for point in curve["points"]])


STRATEGIES = Benchmark(
    "training runs with cftp, dp, dp+tp: time, memory, bytes (table 2)",
    "dithc bench strategies --models S/2,B/2 --batches 8 --json strategies.json",
    _add_strategies,
    runner(
        "training:strategies.bench_strategies",
        lambda result: [row for cell in result["cells"] for row in cell["strategies"].values()],
    ),
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
    runner("training:stepwise.bench_stepwise", lambda result: result["stages"]),
)
AUTOMEM = Benchmark(
    "training in less memory: budgets, a file tier, the memory pool",
    "dithc bench automem --model S/2 --parts budget,file --json automem.json",
    _add_automem,
    runner("automem:bench_automem", lambda result: [row for part in result["parts"].values() for row in part["rows"]]),
)
