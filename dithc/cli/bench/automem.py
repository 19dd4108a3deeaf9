"""`dithc bench automem`: memory and time of AutoMem's pool, tiers and plan, each part separately on request."""

import argparse
from pathlib import Path

from dithc.cli.bench.arguments import Kind, add_json, add_model, add_steps, preset, settings_of, tell

PARTS = "budget,file,largest-batch,pool,resident"


def _add(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--file-gib", type=float, default=16.0, help="size of the file tier (default 16)")
    parser.add_argument("--memory", type=float, default=24.0, metavar="GIB", help="limit of `largest-batch` (24)")
    parser.add_argument("--most", type=int, default=64, help="largest batch to try (default 64)")
    parser.add_argument("--step-models", default="S/2,B/2", help="presets of `pool` and `resident` (default S/2,B/2)")
    parser.add_argument("--repeats", type=int, default=15, help="steps per variant in `pool` and `resident` (15)")
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    add_steps(parser, rounds=2, of="variant", warmup=3)
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    from dithc.bench import automem

    models = tuple(map(preset, args.step_models.split(",")))
    settings = settings_of(
        automem.AutoMemSettings, args, model=preset(args.model), memory_gib=args.memory, step_models=models
    )
    result = automem.bench_automem(settings)
    return tell(result, args.json, [row for part in result["parts"].values() for row in part["rows"]])


AUTOMEM = Kind(
    "training in less memory: budgets, a file tier, the largest batch; the memory pool",
    "dithc bench automem --model S/2 --only budget,file --json automem.json",
    _add,
    _run,
)
