"""`dithc bench sampling`: generation of one image by one rank and by several, compared."""

import argparse

from dithc.cli.bench.arguments import Benchmark, add_json, add_override, preset, settings_of, tell
from dithc.core.logging import user_error


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="DiT-S/2", help="preset, with or without DiT- (default DiT-S/2)")
    add_override(parser)
    parser.add_argument(
        "--tokens", type=numbers, default=(256, 1024, 4096), help="tokens per image, squares (default 256,1024,4096)"
    )
    parser.add_argument("--dtypes", default="fp32,bf16", help="data types among fp32, bf16 (default fp32,bf16)")
    parser.add_argument("--guidance", type=scales, default=(4.0, 1.0), help="guidance scales, 1 for none (default 4,1)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks to start on this machine (default 2)")
    parser.add_argument("--cpus", type=int, help="threads per rank (default: equal shares of this machine's cores)")
    names = "one-rank, all-cores, side-by-side, cfg, shared-kv, ulysses, ring, taylor-3, first-block"
    parser.add_argument("--contenders", help=f"variants among {names} (default: all of these)")
    parser.add_argument(
        "--diffusers",
        action="store_true",
        help="also measure diffusers' DiTPipeline with the same weights, if installed",
    )
    parser.add_argument("--steps", type=int, default=30, help="steps per image (default 30)")
    parser.add_argument(
        "--decode-size", type=int, default=1024, help="side of the decoded image in pixels, or 0 (default 1024)"
    )
    parser.add_argument(
        "--decode-width", type=int, default=32, help="channels of decoders; Stable Diffusion has 128 (default 32)"
    )
    parser.add_argument("--warmup", type=int, default=1, help="untimed steps of each variant (default 1)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each variant (default 3)")
    parser.add_argument("--seconds", type=float, default=0.5, help="minimum duration of a round (default 0.5)")
    parser.add_argument("--on-ranks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    add_json(parser)


def numbers(text: str) -> tuple[int, ...]:
    """Parse integers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def scales(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


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
    settings = settings_of(sampling.SamplingSettings, args, model=preset(args.model), contenders=contenders)
    result = sampling.bench_sampling(settings)
    return tell(result, args.json, [row for cell in result["cells"] for row in cell["rows"]])


SAMPLING = Benchmark(
    "one image by one rank and by several: seconds, speedup, differences",
    "dithc bench sampling --model S/2 --tokens 256,1024 --ranks 2 --diffusers --json sampling.json",
    _add,
    _run,
)
