"""`dithc bench sampling`: generation of one image by one rank and by several, compared."""

import argparse

from dithc.cli.bench.arguments import Benchmark, add_json, add_number, add_override, numbers, preset, settings_of, tell
from dithc.core.logging import user_error


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=preset, default="DiT-S/2", help="preset, with or without DiT- (default DiT-S/2)"
    )
    add_override(parser)
    tokens = "tokens per image, squares (default 256,1024,4096)"
    parser.add_argument("--tokens", type=numbers, default="256,1024,4096", help=tokens)
    parser.add_argument("--dtypes", default="fp32,bf16", help="data types among fp32, bf16 (default fp32,bf16)")
    parser.add_argument("--guidance", type=_scales, default="4,1", help="guidance scales, 1 for none (default 4,1)")
    add_number(parser, "--ranks", 2, "ranks to start on this machine")
    parser.add_argument("--cpus", type=int, help="threads per rank (default: equal shares of this machine's cores)")
    names = "one-rank, all-cores, side-by-side, cfg, shared-kv, ulysses, ring, taylor-3, first-block"
    parser.add_argument("--contenders", help=f"variants among {names} (default: all of these)")
    diffusers = "also measure diffusers' DiTPipeline with the same weights, if installed"
    parser.add_argument("--diffusers", action="store_true", help=diffusers)
    add_number(parser, "--steps", 30, "steps per image")
    add_number(parser, "--decode-size", 1024, "side of the decoded image in pixels, or 0")
    add_number(parser, "--decode-width", 32, "channels of decoders; Stable Diffusion has 128")
    add_number(parser, "--warmup", 1, "untimed steps of each variant")
    add_number(parser, "--rounds", 3, "timed rounds of each variant")
    add_number(parser, "--seconds", 0.5, "minimum duration of a round")
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    add_json(parser)


def _scales(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _run(args: argparse.Namespace) -> int:
    """Run the benchmark, or one of its processes with `--on-ranks`."""
    from dithc.bench import sampling

    if args.on_ranks:
        from dithc.cli.distributed import ranks
        from dithc.config import ExperimentConfig

        if args.at is None:
            raise user_error("bench sampling --on-ranks", got="no --at", expected="a socket", fix="remove --on-ranks")
        with ranks(ExperimentConfig(), expected=None) as group:
            sampling.run_worker(args.at, group)
        return 0
    chosen = tuple(args.contenders.split(",")) if args.contenders else sampling.NORMAL
    contenders = tuple(dict.fromkeys([*chosen, sampling.DIFFUSERS])) if args.diffusers else chosen
    settings = settings_of(sampling.SamplingSettings, args, contenders=contenders)
    result = sampling.bench_sampling(settings)
    return tell(result, args.json, [row for cell in result["cells"] for row in cell["rows"]])


SAMPLING = Benchmark(
    "one image by one rank and by several: seconds, speedup, differences",
    "dithc bench sampling --model S/2 --tokens 256,1024 --ranks 2 --diffusers --json sampling.json",
    _add,
    _run,
)
