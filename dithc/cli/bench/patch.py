"""`dithc bench patch`: training steps of third-party models, with and without dithc's operators."""

import argparse

from dithc.cli.bench.arguments import Kind, add_threads, settings_of, tell


def _add(parser: argparse.ArgumentParser) -> None:
    own = "vit, decoder"
    others = "timm-vit, diffusers-unet, diffusers-dit, transformers-siglip, transformers-llama"
    parser.add_argument("--models", help=f"models among {own}, {others} (default: all that are installed)")
    parser.add_argument("--dtypes", default="fp32,autocast", help="among fp32, autocast, bf16 (default fp32,autocast)")
    parser.add_argument("--compare", default="eager,compile", help="implementations to compare with the patched model")
    parser.add_argument("--batch", type=int, default=4, help="images or sequences per step (default 4)")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps of each variant (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds (default 7)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batch (default 0)")
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
