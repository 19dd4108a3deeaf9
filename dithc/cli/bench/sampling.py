"""`dithc bench sampling`: generation of one image by one rank and by several, compared."""

import argparse

from dithc.cli.bench.arguments import Benchmark, add_json, add_option, add_override, emit, numbers, preset, settings_of
from dithc.core.logging import user_error


def _add(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--model", "DiT-S/2", "preset, with or without DiT-", type=preset)
    add_override(parser)
    add_option(parser, "--tokens", "256,1024,4096", "tokens per image, squares", type=numbers)
    add_option(parser, "--dtypes", "fp32,bf16", "data types among fp32, bf16")
    add_option(parser, "--guidance", "4,1", "guidance scales, 1 for none", type=_scales)
    add_option(parser, "--ranks", 2, "ranks to start on this machine")
    parser.add_argument(
        "--cpus-per-rank", type=int, help="threads per rank (default: equal shares of this machine's cores)"
    )
    names = "one-rank, all-cores, side-by-side, cfg, shared-kv, ulysses, ring"
    parser.add_argument("--variants", help=f"variants among {names} (default: all of these)")
    diffusers = "also measure diffusers' DiTPipeline with the same weights, if installed"
    parser.add_argument("--diffusers", action="store_true", help=diffusers)
    add_option(parser, "--steps", 30, "steps per image")
    add_option(parser, "--decode-size", 1024, "side of the decoded image in pixels, or 0")
    add_option(parser, "--decode-width", 32, "channels of decoders; Stable Diffusion has 128")
    add_option(parser, "--warmup", 1, "untimed steps of each variant")
    add_option(parser, "--rounds", 3, "timed rounds of each variant")
    add_option(parser, "--min-round-seconds", 0.5, "minimum duration of a round")
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    add_json(parser)


def _scales(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _run(args: argparse.Namespace) -> int:
    from dithc.bench import sampling

    if args.on_ranks:
        from dithc.cli.distributed import ranks
        from dithc.config import ExperimentConfig

        if args.at is None:
            raise user_error("bench sampling --on-ranks", got="no --at", expected="a socket", fix="remove --on-ranks")
        with ranks(ExperimentConfig(), expected=None) as group:
            sampling.run_worker(args.at, group)
        return 0
    names = tuple(args.variants.split(",")) if args.variants else sampling.NORMAL
    variants = tuple(dict.fromkeys([*names, sampling.DIFFUSERS])) if args.diffusers else names
    result = sampling.bench_sampling(settings_of(sampling.SamplingSettings, args, variants=variants))
    return emit(result, args.json, [row for cell in result["cells"] for row in cell["rows"]])


SAMPLING = Benchmark(
    "one image by one rank and by several: seconds, speedup, differences",
    "dithc bench sampling --model S/2 --tokens 256,1024 --ranks 2 --diffusers --json sampling.json",
    _add,
    _run,
)
