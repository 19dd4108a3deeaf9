"""`dithc bench ops`, `step` and `curves`: measurements inside this process."""

import argparse

from dithc.cli.bench.arguments import (
    Benchmark,
    add_choice,
    add_dtype,
    add_dtypes,
    add_model,
    add_option,
    add_rounds,
    add_threads,
    runner,
)


def _add_ops(parser: argparse.ArgumentParser) -> None:
    ops = "gemm, attention, gelu, adaln, adarms, gate_residual, rotate_heads, silu, swiglu, adamw"
    parser.add_argument("--ops", help=f"operators among {ops} (default: all)")
    add_option(parser, "--models", "DiT-XL/2,DiT-S/2", "presets for gemm")
    add_dtypes(parser)
    libraries = "libraries to compare with PyTorch's choice for gemm: openblas, torch-blas, onednn (table 4)"
    parser.add_argument("--libraries", help=libraries)
    parser.add_argument("--backend", choices=("c", "numba", "reference"), help="backend of hcops (default: active)")
    size = "activation size of memory-bound operators (default 256 MiB)"
    parser.add_argument("--bytes", type=int, dest="size_bytes", help=size)
    add_option(parser, "--rounds", 11, "timed rounds")
    add_threads(parser)


def _add_step(parser: argparse.ArgumentParser) -> None:
    add_model(parser, batch=16)
    add_dtype(parser)
    compare = (
        "implementations to compare with dithc's step; also: numba, one-cluster; untuned, own-products, openblas, "
        "torch-blas, onednn: only the products of linear layers differ (table 3)"
    )
    parser.add_argument("--compare", default="eager,compile,max-autotune,medium", help=compare)
    add_choice(parser, "--device", ("cpu", "cuda"), "cuda: PyTorch's operators on a GPU, eager and compiled")
    add_rounds(parser)


def _add_curves(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--platform", "c-fp32", "reference, c-fp32, c-bf16, numba or cuda")
    platforms = "also train on these platforms"
    parser.add_argument("--compare", metavar="PLATFORMS", help=platforms)
    add_model(parser, batch=16)
    add_option(parser, "--steps", 100, "training steps")
    add_option(parser, "--seed", 0, "seed of weights, images and noise")
    add_threads(parser)


OPS = Benchmark(
    "each operator: matrix products, attention and memory-bound operators",
    "dithc bench ops --ops gemm,attention --models DiT-S/2 --dtype fp32 --json ops.json",
    _add_ops,
    runner("operators:ops.bench_ops"),
)
STEP = Benchmark(
    "one training step: forward, loss, backward, AdamW",
    "dithc bench step --model DiT-S/2 --batch 16 --dtype bf16 --json step.json",
    _add_step,
    runner("step:bench_step", lambda result: result["variants"]),
)
CURVES = Benchmark(
    "losses of training from scratch on one platform",
    "dithc bench curves --platform c-bf16 --model DiT-S/2 --batch 4 --steps 20 --seed 0 --json curve.json",
    _add_curves,
    runner("step:loss_curves.bench_curves"),
)
