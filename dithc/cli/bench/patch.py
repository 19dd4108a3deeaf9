"""`dithc bench patch`: training steps of models of others, with and without our operators."""

import argparse

from dithc.cli.bench.arguments import Kind, add_threads, settings_of, tell


def _add(parser: argparse.ArgumentParser) -> None:
    own = "vit, decoder"
    others = "timm-vit, diffusers-unet, diffusers-dit, transformers-siglip, transformers-llama"
    parser.add_argument("--models", help=f"of {own}, {others} (default: all; those not installed are named)")
    parser.add_argument("--dtypes", default="fp32,autocast", help="of fp32, autocast, bf16 (default fp32,autocast)")
    parser.add_argument("--compare", default="eager,compile", help="what patched is compared with")
    parser.add_argument("--batch", type=int, default=4, help="images or sequences a step (default 4)")
    parser.add_argument("--warmup", type=int, default=2, help="steps of each before the clock (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds (default 7)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batch (default 0)")
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    from dithc.bench import patched

    result = patched.bench_patch(settings_of(patched.PatchSettings, args, models=args.models or None))
    return tell(result, args.json, result["cases"])


PATCH = Kind(
    "models of timm, diffusers, transformers: plain, compiled and patched",
    "dithc bench patch --models vit,decoder --json patch.json",
    _add,
    _run,
)
