"""`dithc bench ops`, `step`, `curves` and `patch`: measurements inside this process."""

import argparse

from dithc.cli.bench.arguments import Benchmark, add_override, add_threads, preset, settings_of, tell

MIB = 1 << 20


def _add_ops(parser: argparse.ArgumentParser) -> None:
    ops = "gemm, attention, gelu, adaln, adarms, gate_residual, rotate_heads, silu, swiglu, adamw"
    parser.add_argument("--ops", help=f"operators among {ops} (default: all)")
    parser.add_argument("--models", default="DiT-XL/2,DiT-S/2", help="presets for gemm (default DiT-XL/2,DiT-S/2)")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "both"), default="both", help="(default both)")
    parser.add_argument(
        "--libraries",
        help="libraries to compare with PyTorch's choice for gemm: openblas, torch-blas, onednn (table 4)",
    )
    parser.add_argument("--backend", choices=("c", "numba", "reference"), help="backend of hcops (default: active)")
    parser.add_argument(
        "--bytes", type=int, default=256 * MIB, help="activation size of memory-bound operators (default 256 MiB)"
    )
    parser.add_argument("--repeats", type=int, default=11, help="timed rounds (default 11)")
    add_threads(parser)


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="DiT-S/2", help="preset (default DiT-S/2)")
    add_override(parser)
    parser.add_argument("--batch", type=int, default=16, help="images per step (default 16)")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast, weights stay fp32")
    parser.add_argument(
        "--compare",
        default="eager,compile",
        help="implementations to compare with dithc's step; also: numba, one-cluster; untuned, own-products, openblas, "
        "torch-blas, onednn: only the products of linear layers differ (table 3)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: PyTorch's operators on a GPU, eager and compiled",
    )
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps of each variant (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds (default 7)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batch (default 0)")
    add_threads(parser)


def _ops(args: argparse.Namespace) -> int:
    from dithc.bench import operators

    settings = settings_of(
        operators.ops.OpsSettings,
        args,
        ops=args.ops or None,
        dtypes=("fp32", "bf16") if args.dtype == "both" else (args.dtype,),
        libraries=args.libraries or None,
        size_bytes=args.bytes,
    )
    result = operators.ops.bench_ops(settings)
    return tell(result, args.json, [])


def _step(args: argparse.Namespace) -> int:
    from dithc.bench import step

    result = step.bench_step(settings_of(step.StepSettings, args))
    return tell(result, args.json, result["contenders"])


OPS = Benchmark(
    "each operator: matrix products, attention and memory-bound operators",
    "dithc bench ops --ops gemm,attention --models DiT-S/2 --dtype fp32 --json ops.json",
    _add_ops,
    _ops,
)
STEP = Benchmark(
    "one training step: forward, loss, backward, AdamW",
    "dithc bench step --model DiT-S/2 --batch 16 --dtype bf16 --compare eager,compile --json step.json",
    _add_step,
    _step,
)


def _add_curves(parser: argparse.ArgumentParser) -> None:
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


def _curves(args: argparse.Namespace) -> int:
    from dithc.bench import step

    beside = tuple(args.beside.split(",")) if args.beside else ()
    settings = settings_of(step.loss_curves.CurveSettings, args, model=preset(args.model), beside=beside)
    result = step.loss_curves.bench_curves(settings)
    tell(result, args.json, [])
    return 0


CURVES = Benchmark(
    "losses of training from scratch on one platform",
    "dithc bench curves --platform c-bf16 --model DiT-S/2 --batch 4 --steps 20 --seed 0 --json curve.json",
    _add_curves,
    _curves,
)


def _add_patch(parser: argparse.ArgumentParser) -> None:
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


def _patch(args: argparse.Namespace) -> int:
    from dithc.bench import patching

    result = patching.bench_patch(settings_of(patching.PatchSettings, args, models=args.models or None))
    return tell(result, args.json, result["cases"])


PATCH = Benchmark(
    "models of timm, diffusers, transformers: plain, compiled and patched",
    "dithc bench patch --models vit,decoder --json patch.json",
    _add_patch,
    _patch,
)
