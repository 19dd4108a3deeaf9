"""`dithc simulate`: training steps or a sampling run on a described machine with any number of nodes."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.core.logging import user_error

if TYPE_CHECKING:
    from dithc.bench.simulate import sampling

SUMMARY = (
    "Simulate training steps on a described machine: seconds, efficiency and exposed communication by nodes. With "
    "--sample, predict a sampling run: every partition among ranks, with seconds, speedup over one rank and share of "
    "the ideal."
)
EXAMPLE = (
    "dithc simulate --machine profiles/machines/lx2.yaml --models DiT-XL/2 --nodes 1,2,4,8,16,32,64,128,256,512,1024 "
    "--mode weak --json scaling.json"
)

INFINITY = float("inf")
SIZE_STEP = 16  # pixels of a patch of two latent pixels
COUNTS = ("nodes", "global_batch_size", "steps", "ranks_per_node", "images_per_node", "images", "sampling_steps", "top")
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(COUNTS, (lambda one: one >= 1, "integers from 1")),
    "size": (lambda one: one > 0 == one % SIZE_STEP, f"pixels, a multiple of {SIZE_STEP}"),
    **dict.fromkeys(("bandwidth", "flops", "bucket_mb"), (lambda one: 0 < one < INFINITY, "a number above 0")),
    **dict.fromkeys(
        ("half_tokens", "decode_tflop", "fixed_seconds"), (lambda one: 0 <= one < INFINITY, "a number from 0")
    ),
    "stragglers": (lambda one: 0 <= one < 1, "a standard deviation from 0 to below 1, such as 0.05"),
}
"""Test and description of the valid numbers of each argument."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the machine, the step, the methods and the output file."""
    machine = Path("profiles/machines/lx2.yaml")
    parser.add_argument("--machine", type=Path, default=machine, help=f"description with `network` (default {machine})")
    parser.add_argument("--models", default="DiT-XL/2", help="presets, one curve each (default DiT-XL/2)")
    nodes = ",".join(str(1 << power) for power in range(11))
    parser.add_argument("--nodes", type=_counts, default=nodes, help="node counts (default 1,2,4, ... 1024)")
    parser.add_argument("--mode", choices=("weak", "strong"), default="weak", help="scaling (default weak)")
    images = "images of strong scaling (default: as in the paper)"
    parser.add_argument("--global-batch-size", type=_counts, default="448,3072,16384", help=images)
    parser.add_argument(
        "--step",
        metavar="FILE|SECONDS",
        help="step of one node: JSON of `dithc bench step` or `scaling`, or seconds for one model (default: published)",
    )
    parser.add_argument("--images-per-node", type=int, help="of that step (default: the file's, or 112)")
    parser.add_argument("--ranks-per-node", type=int, help="ranks per node (default: one per die)")
    parser.add_argument("--collectives", default="hierarchical", help="of hierarchical, ring, rabenseifner; curves")
    parser.add_argument("--wire", default="fp32", help="wire types among fp32, bf16; one curve each, if hierarchical")
    parser.add_argument("--bucket-mb", type=float, help="bucket size in MB (default: dithc's rule)")
    parser.add_argument("--no-overlap", action="store_true", help="exchange after the backward pass")
    parser.add_argument("--no-communication-core", action="store_true", help="communicate on a core that computes")
    parser.add_argument("--zero1", action="store_true", help="shard the optimizer state")
    parser.add_argument(
        "--stragglers", type=float, metavar="SPREAD", help="spread of speeds (default: fitted on LX2, or 0)"
    )
    parser.add_argument("--fixed-seconds", type=float, default=0.0, help="time per step without images (default 0)")
    parser.add_argument("--steps", type=int, default=32, help="steps averaged per point (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the stragglers (default 0)")
    parser.add_argument("--reproduce-paper", action="store_true", help="also compare with the paper's scaling")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curves and all inputs")
    _add_sampling(parser)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of sampling."""
    group = parser.add_argument_group("sampling", "with --machine, --models, --nodes, --ranks-per-node, --step, --json")
    group.add_argument("--sample", action="store_true", help="predict a sampling run instead of training")
    group.add_argument("--images", type=int, default=1, help="images to sample (default 1)")
    group.add_argument("--size", type=int, default=256, metavar="PIXELS", help="image side in pixels (default 256)")
    group.add_argument("--sampling-steps", type=int, default=50, help="network evaluations per image (default 50)")
    group.add_argument("--unguided", action="store_true", help="evaluate one branch per step instead of two")
    group.add_argument("--bandwidth", type=float, help="bytes/s of a rank between nodes (default: described)")
    group.add_argument("--flops", type=float, help="rate of a rank in flop/s (default: rate of --step)")
    group.add_argument("--half-tokens", type=float, default=16.0, help="tokens for half of that rate (default 16)")
    group.add_argument("--decode-tflop", type=float, help="decoder work per image (default: Stable Diffusion's)")
    group.add_argument("--top", type=int, default=8, help="partitions to show (default 8)")


def run(args: argparse.Namespace) -> int:
    """Simulate and print a table. Return 1 if the paper is not reproduced."""
    from dithc.engine.hardware import description

    _check_ranges(args)
    step = _step(args.step)
    description.read(args.machine)  # raises an error before the slow imports
    from dithc.bench.simulate import SimulationSettings, format_curves, sampling
    from dithc.bench.simulate import run_simulation as simulate
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed

    settings = SimulationSettings(
        machine=args.machine,
        models=tuple(args.models.split(",")),
        nodes=args.nodes,
        mode=args.mode,
        global_batches=args.global_batch_size,
        step=step,
        images_per_node=args.images_per_node,
        ranks_per_node=args.ranks_per_node,
        collectives=tuple(args.collectives.split(",")),
        wires=tuple(args.wire.split(",")),
        bucket_mb=args.bucket_mb,
        overlaps=not args.no_overlap,
        communication_core=not args.no_communication_core,
        zero1=args.zero1,
        spread=args.stragglers,
        fixed_seconds=args.fixed_seconds,
        steps=args.steps,
        seed=args.seed,
        reproduces_paper=args.reproduce_paper,
    )
    if args.sample:
        result = sampling.predict(settings, _sampling(args))
        print(sampling.table(result))
    else:
        result = simulate(settings)
        print(format_curves(result))
    if args.json:
        outputs.write(args.json, dump_checksummed(result, allow_nan=True))
    tried = [one for one in result.get("validation", {}).values() if one["is_the_reproduction"]]
    return 0 if all(row["within"] for one in tried for row in [*one["seconds"], one["efficiency"]]) else 1


def _sampling(args: argparse.Namespace) -> "sampling.Sampling":
    from dithc.bench.simulate import sampling

    return sampling.Sampling(
        images=args.images,
        size=args.size,
        steps=args.sampling_steps,
        guided=not args.unguided,
        bandwidth=args.bandwidth,
        flops=args.flops,
        half_tokens=args.half_tokens,
        decode_tflop=args.decode_tflop,
        shown=args.top,
    )


def _check_ranges(args: argparse.Namespace) -> None:
    """Raise UserError for a number outside its range."""
    for name, (is_right, expected) in RANGES.items():
        given, option = getattr(args, name), f"--{name.replace('_', '-')}"
        values = given if isinstance(given, tuple) else () if given is None else (given,)
        if not all(map(is_right, values)):
            got = ", ".join(map(str, values))
            raise user_error(f"simulate {option}", got=got, expected=expected, fix=f"correct {option}")


def _counts(text: str) -> tuple[int, ...]:
    """Parse `1,2,4` as integers."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 1,2,4") from None


def _step(text: str | None) -> float | Path | None:
    """Parse a number of seconds, or the path of a file; UserError if it is neither a time nor a file."""
    if text is None:
        return None
    try:
        step: float | Path = float(text)
    except ValueError:
        step = Path(text)
    if not (step.is_file() if isinstance(step, Path) else 0 < step < float("inf")):
        raise user_error(
            "simulate --step",
            got=text,
            expected="seconds above 0, or the JSON file of `dithc bench step` or `dithc bench scaling`",
            fix="correct --step",
        )
    return step
