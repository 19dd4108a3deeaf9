"""`dithc bench curves`: loss of each step of a training run on one platform."""

import argparse

from dithc.cli.bench.arguments import Kind, add_override, add_threads, preset, settings_of, tell


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform", default="c-fp32", help="reference, c-fp32, c-bf16, numba, sme (emulated) or cuda (default c-fp32)"
    )
    parser.add_argument(
        "--beside", default="", metavar="PLATFORMS", help="also train on these platforms; sme trains a tiny network"
    )
    parser.add_argument("--model", default="DiT-S/2", help="preset, with or without DiT- (default DiT-S/2)")
    add_override(parser)
    parser.add_argument("--batch", type=int, default=16, help="images per step (default 16)")
    parser.add_argument("--steps", type=int, default=100, help="training steps (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, images and noise (default 0)")
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    from dithc.bench import step

    beside = tuple(args.beside.split(",")) if args.beside else ()
    settings = settings_of(step.curves.CurveSettings, args, model=preset(args.model), beside=beside)
    result = step.curves.bench_curves(settings)
    tell(result, args.json, [])
    return 0


CURVES = Kind(
    "losses of training from scratch on one platform",
    "dithc bench curves --platform c-bf16 --model DiT-S/2 --batch 4 --steps 20 --seed 0 --json curve.json",
    _add,
    _run,
)
