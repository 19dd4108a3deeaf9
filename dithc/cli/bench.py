"""`dithc bench`: times what training is made of, on this machine."""

import argparse
import ast
from pathlib import Path
from typing import Any

from dithc.cli import bench_checkpoint

SUMMARY = "Time operators or a whole training step in several ways, in turns, beside the machine's ceilings."
EXAMPLE = "dithc bench step --model DiT-S/2 --batch 16 --dtype bf16 --compare eager,compile --json bench.json"

MIB = 1 << 20
OVERRIDE = "change hidden_size, depth or num_heads of the preset; may be repeated"
KINDS = {
    "ops": "each operator",
    "step": "a training step",
    "strategies": "trainings under cftp, dp and dp+tp",
    "scaling": "trainings on more and more ranks",
    "collectives": "what ranks exchange, by each way there is",
    "training": "one training on random latents",
    "checkpoint": "a checkpoint beside a training",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be timed and its settings."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(KINDS))
    _add_ops(kinds.add_parser("ops", help="each operator: matrix products, attention, and what memory limits"))
    _add_step(kinds.add_parser("step", help="one training step: forward, loss, backward, AdamW"))
    _add_strategies(
        kinds.add_parser("strategies", help="trainings under cftp, dp, dp+tp: time, memory, bytes (table 2)")
    )
    _add_scaling(kinds.add_parser("scaling", help="a training on more and more ranks (figures 10 and 11)"))
    _add_collectives(kinds.add_parser("collectives", help="sums of all ranks, by dithc-mpi in its modes, MPI and gloo"))
    _add_training(kinds.add_parser("training", help="steps of one training on the ranks of `dithc launch`"))
    _add_checkpoint(kinds.add_parser("checkpoint", help="steps while a checkpoint is written, and without"))


def run(args: argparse.Namespace) -> int:
    """Measures and prints a table; status 1 when no contender ran."""
    import json

    from dithc.bench import table
    from dithc.runs import atomic_write

    if args.kind == "training":
        return _training(args)
    if args.kind == "collectives":
        return _collectives(args)
    if args.kind == "checkpoint":
        return bench_checkpoint.run(args)
    result = {"ops": _ops, "step": _step, "strategies": _strategies, "scaling": _scaling}[args.kind](args)
    print(table(result))
    if args.json:
        atomic_write(args.json, json.dumps(result, indent=1) + "\n")
    if args.kind == "ops":
        return 0
    if args.kind == "step":
        rows = result["contenders"]
    elif args.kind == "scaling":
        rows = [point for curve in result["curves"] for point in curve["points"]]
    else:
        rows = [row for one in result["cells"] for row in one["strategies"].values()]
    return 0 if any(row["status"] == "ok" for row in rows) else 1


def _add_ops(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ops", help="of gemm, attention, gelu, adaln, gate_residual, silu, adamw (default: all)")
    parser.add_argument("--models", default="DiT-XL/2,DiT-S/2", help="presets for gemm (default DiT-XL/2,DiT-S/2)")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "both"), default="both", help="(default both)")
    parser.add_argument("--backend", choices=("c", "numba", "reference"), help="of hcops (default: the active one)")
    parser.add_argument(
        "--bytes", type=int, default=256 * MIB, help="of an activation of the memory-bound operators (default 256 MiB)"
    )
    parser.add_argument("--repeats", type=int, default=11, help="timed rounds (default 11)")
    _add_common(parser)


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="DiT-S/2", help="preset (default DiT-S/2)")
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        type=override,
        metavar="FIELD=VALUE",
        help="change a field of the preset, such as depth=2; may be repeated",
    )
    parser.add_argument("--batch", type=int, default=16, help="images per step (default 16)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast, weights stay fp32")
    parser.add_argument("--compare", default="eager,compile", help="what dithc's step is compared with; also: numba")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each before the clock (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds (default 7)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batch (default 0)")
    _add_common(parser)


def _add_strategies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default="S/2,B/2,L/2,XL/2", help="presets, with or without DiT- (default all four)")
    parser.add_argument("--batches", default="8,16", help="images a step over all ranks (default 8,16)")
    parser.add_argument(
        "--strategies", default="cftp,dp,dp+tp,cftp-1-cluster", help="(default cftp,dp,dp+tp,cftp-1-cluster)"
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each contender, in turns (default 2)")
    parser.add_argument("--warmup", type=int, default=2, help="steps of a run before the clock (default 2)")
    parser.add_argument("--steps", type=int, default=3, help="steps of a run on the clock (default 3)")
    parser.add_argument(
        "--memory-limit",
        type=float,
        metavar="GIB",
        help="for all ranks of a run, beyond which it is `-` (default: what is free)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured, with machine and versions"
    )


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "--weak", dest="mode", action="store_const", const="weak", help="the images of a rank stay (figure 10)"
    )
    mode.add_argument(
        "--strong", dest="mode", action="store_const", const="strong", help="those of all stay (figure 11)"
    )
    parser.add_argument("--models", default="B/2", help="presets, with or without DiT- (default B/2)")
    parser.add_argument("--ranks", default="1,2", help="counts of ranks, ascending (default 1,2)")
    parser.add_argument(
        "--batch", type=int, default=8, help="images a step: of a rank (weak), of all (strong) (default 8)"
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), default="cftp", help="(default cftp)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each count, in turns (default 2)")
    parser.add_argument("--warmup", type=int, default=2, help="steps of a run before the clock (default 2)")
    parser.add_argument("--steps", type=int, default=3, help="steps of a run on the clock (default 3)")
    parser.add_argument(
        "--without-communication",
        action="store_true",
        help="also the same step with every rank alone, in pairs inside each run of several ranks",
    )
    parser.add_argument("--launcher", choices=("mpiexec", "srun"), default="mpiexec", help="(default mpiexec)")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="on several nodes (default: all on this one)")
    parser.add_argument("--cpus", type=int, help="cores of a rank (default: equal shares of this machine's)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured, with machine and versions"
    )


def _add_collectives(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=2, help="started on this machine, a thread each (default 2)")
    parser.add_argument("--mib", type=int, default=64, help="of fp32 numbers on each rank (default 64)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before the clock (default 2)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds on the clock (default 11)")
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured, with machine and versions"
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="DiT-S/2", help="preset (default DiT-S/2)")
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)
    parser.add_argument("--batch", type=int, default=8, help="images a step over all ranks (default 8)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), default="cftp", help="(default cftp)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock (default 2)")
    parser.add_argument("--steps", type=int, default=3, help="steps on the clock (default 3)")
    parser.add_argument("--pairs", type=int, default=0, help="then pairs of steps, together and alone (default 0)")
    parser.add_argument("--data-limit", type=int, metavar="BYTES", help="RLIMIT_DATA of each rank")
    parser.add_argument(
        "--json",
        type=Path,
        required=True,
        metavar="FILE",
        help="result; FILE with the suffix .warm appears after warm-up",
    )


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="DiT-B/2", help="preset (default DiT-B/2)")
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)
    parser.add_argument("--batch", type=int, default=8, help="images a step over all ranks (default 8)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), default="cftp", help="(default cftp)")
    bench_checkpoint.add_arguments(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured, with machine and versions"
    )


def _ops(args: argparse.Namespace) -> dict[str, Any]:
    from dithc.bench import ops

    given: dict[str, Any] = {"ops": tuple(args.ops.split(","))} if args.ops else {}
    return ops.bench_ops(
        ops.OpsSettings(
            models=tuple(args.models.split(",")),
            dtypes=("fp32", "bf16") if args.dtype == "both" else (args.dtype,),
            backend=args.backend,
            size_bytes=args.bytes,
            threads=args.threads,
            repeats=args.repeats,
            **given,
        )
    )


def _step(args: argparse.Namespace) -> dict[str, Any]:
    from dithc.bench import step

    return step.bench_step(
        step.StepSettings(
            model=args.model,
            overrides=dict(args.override),
            batch=args.batch,
            dtype=args.dtype,
            compare=tuple(args.compare.split(",")),
            threads=args.threads,
            warmup=args.warmup,
            repeats=args.repeats,
            seed=args.seed,
        )
    )


def _strategies(args: argparse.Namespace) -> dict[str, Any]:
    from dithc.bench import strategies

    return strategies.bench_strategies(
        strategies.StrategiesSettings(
            models=tuple(f"DiT-{name.removeprefix('DiT-')}" for name in args.models.split(",")),
            batches=tuple(int(batch) for batch in args.batches.split(",")),
            strategies=tuple(args.strategies.split(",")),
            dtype=args.dtype,
            overrides=dict(args.override),
            rounds=args.rounds,
            warmup=args.warmup,
            steps=args.steps,
            memory_limit_gib=args.memory_limit,
        )
    )


def _scaling(args: argparse.Namespace) -> dict[str, Any]:
    from dithc.bench import scaling

    beside = args.json.resolve().parent if args.json and args.ranks_per_node else None  # where other nodes see it too
    return scaling.bench_scaling(
        scaling.ScalingSettings(
            mode=args.mode,
            models=tuple(f"DiT-{name.removeprefix('DiT-')}" for name in args.models.split(",")),
            ranks=tuple(int(count) for count in args.ranks.split(",")),
            batch=args.batch,
            dtype=args.dtype,
            overrides=dict(args.override),
            strategy=args.strategy,
            rounds=args.rounds,
            warmup=args.warmup,
            steps=args.steps,
            without_communication=args.without_communication,
            launcher=args.launcher,
            ranks_per_node=args.ranks_per_node,
            cpus=args.cpus,
        ),
        folder=beside,
    )


def _collectives(args: argparse.Namespace) -> int:
    """Starts the ranks; with `--on-ranks` it is one of them."""
    import json

    from dithc.bench import collectives, table
    from dithc.comm import connect
    from dithc.runs import atomic_write

    settings = collectives.CollectivesSettings(ranks=args.ranks, mib=args.mib, warmup=args.warmup, rounds=args.rounds)
    if args.on_ranks:
        with connect(timeout_seconds=60) as group:
            result = collectives.measure(settings, group)
            if group.rank == 0 and args.json:
                atomic_write(args.json, json.dumps(result) + "\n")
        return 0
    result = collectives.bench_collectives(settings)
    print(table(result))
    if args.json:
        atomic_write(args.json, json.dumps(result, indent=1) + "\n")
    return 0


def _training(args: argparse.Namespace) -> int:
    """One rank of a training; what `strategies` and `scaling` start."""
    import json
    import resource

    from dithc.cli.ranks import ranks
    from dithc.config import Experiment
    from dithc.runs import atomic_write
    from dithc.train import Rehearsal, rehearse

    settings = Rehearsal(
        model={"preset": args.model, **dict(args.override)},
        batch=args.batch,
        dtype=args.dtype,
        strategy=args.strategy,
        warmup=args.warmup,
        steps=args.steps,
        pairs=args.pairs,
    )
    with ranks(Experiment(), expected=None) as group:
        if args.data_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (args.data_limit, args.data_limit))
        result = rehearse(settings, group, warm=args.json.with_suffix(".warm").touch)
        if group.rank == 0:
            atomic_write(args.json, json.dumps(result, indent=1) + "\n")
    return 0


def override(text: str) -> tuple[str, Any]:
    """FIELD=VALUE with a number, a tuple, True or False as the value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIELD=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(f"{text!r}: the value is no number, tuple, True or False") from None
