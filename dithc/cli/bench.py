"""`dithc bench`: times what training is made of, on this machine."""

import argparse
import ast
from pathlib import Path
from typing import Any

SUMMARY = "Time operators or a whole training step in several ways, in turns, beside the machine's ceilings."
EXAMPLE = "dithc bench step --model DiT-S/2 --batch 16 --dtype bf16 --compare eager,compile --json bench.json"

MIB = 1 << 20
KINDS = {"ops": "each operator", "step": "a training step"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be timed and its settings."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(KINDS))
    _add_ops(kinds.add_parser("ops", help="each operator: matrix products, attention, and what memory limits"))
    _add_step(kinds.add_parser("step", help="one training step: forward, loss, backward, AdamW"))


def run(args: argparse.Namespace) -> int:
    """Measures and prints a table; status 1 when no contender ran."""
    import json

    from dithc.bench import table
    from dithc.runs import atomic_write

    result = _ops(args) if args.kind == "ops" else _step(args)
    print(table(result))
    if args.json:
        atomic_write(args.json, json.dumps(result, indent=1) + "\n")
    return 0 if args.kind == "ops" or any(row["status"] == "ok" for row in result["contenders"]) else 1


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


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured, with machine and versions"
    )


def _ops(args: argparse.Namespace) -> dict[str, Any]:
    from dithc.bench import OpsSettings, bench_ops

    given: dict[str, Any] = {"ops": tuple(args.ops.split(","))} if args.ops else {}
    return bench_ops(
        OpsSettings(
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
    from dithc.bench import StepSettings, bench_step

    return bench_step(
        StepSettings(
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


def override(text: str) -> tuple[str, Any]:
    """FIELD=VALUE with a number, a tuple, True or False as the value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIELD=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(f"{text!r}: the value is no number, tuple, True or False") from None
