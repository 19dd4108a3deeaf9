"""`dithc bench`: times what training is made of, on this machine."""

import argparse
import ast
from pathlib import Path
from typing import Any

SUMMARY = "Time a training step in several ways, in turns, beside the machine's ceilings."
EXAMPLE = "dithc bench step --model DiT-S/2 --batch 16 --dtype bf16 --compare eager,compile --json bench.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be timed and its settings."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="step")
    step = kinds.add_parser("step", help="one training step: forward, loss, backward, AdamW")
    step.add_argument("--model", default="DiT-S/2", help="preset (default DiT-S/2)")
    step.add_argument(
        "--override",
        action="append",
        default=[],
        type=_override,
        metavar="FIELD=VALUE",
        help="change a field of the preset, such as depth=2; may be repeated",
    )
    step.add_argument("--batch", type=int, default=16, help="images per step (default 16)")
    step.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast, weights stay fp32")
    step.add_argument("--compare", default="eager,compile", help="contenders, the first is the base of the ratios")
    step.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    step.add_argument("--warmup", type=int, default=2, help="steps of each before the clock (default 2)")
    step.add_argument("--repeats", type=int, default=7, help="timed rounds (default 7)")
    step.add_argument("--seed", type=int, default=0, help="of weights and batch (default 0)")
    step.add_argument("--json", type=Path, metavar="FILE", help="write everything measured, with machine and versions")


def run(args: argparse.Namespace) -> int:
    """Measures and prints a table; status 1 when no contender ran."""
    import json

    from dithc.bench import StepSettings, bench_step, step_table
    from dithc.runs import atomic_write

    result = bench_step(
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
    print(step_table(result))
    if args.json:
        atomic_write(args.json, json.dumps(result, indent=1) + "\n")
    return 0 if any(row["status"] == "ok" for row in result["contenders"]) else 1


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIELD=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(f"{text!r}: the value is no number, tuple, True or False") from None
