"""`dithc simulate`: training steps on a described machine with any number of nodes."""

import argparse
from collections.abc import Callable
from pathlib import Path

from dithc.core.logging import user_error

SUMMARY = (
    "Simulate training steps on a described machine: seconds, efficiency and exposed communication by number of nodes."
)
EXAMPLE = (
    "dithc simulate --machine profiles/machines/lx2.yaml --models DiT-XL/2 --nodes 1,2,4,8,16,32,64,128,256,512,1024 "
    "--scaling weak --json scaling.json"
)

INFINITY = float("inf")
COUNTS = (
    "nodes",
    "global_batches",
    "steps",
    "ranks_per_node",
    "images_per_node",
    "local_steps",
)
RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(COUNTS, (lambda one: one >= 1, "integers from 1")),
    "bucket_mb": (lambda one: 0 < one < INFINITY, "a number above 0"),
    "fixed_step_seconds": (lambda one: 0 <= one < INFINITY, "a number from 0"),
    "spread": (lambda one: 0 <= one < 1, "a standard deviation from 0 to below 1, such as 0.05"),
}
"""Test and description of the valid numbers of each argument."""
OPTIONS = {"global_batches": "--global-batch-size", "spread": "--stragglers"}
"""Options with another name than their setting."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dithc.cli.bench import arguments

    arguments.add_option(parser, "--machine", Path("profiles/machines/lx2.yaml"), "description with `network`")
    arguments.add_option(parser, "--models", "DiT-XL/2", "presets, one curve each")
    parser.add_argument("--nodes", type=arguments.numbers, help="node counts (default 1,2,4, ... 1024)")
    arguments.add_choice(parser, "--scaling", ("weak", "strong"))
    images = "images of strong scaling (default: as in the paper)"
    parser.add_argument("--global-batch-size", type=arguments.numbers, dest="global_batches", help=images)
    step = "step of one node: JSON of `dithc bench step` or `scaling`, or seconds for one model (default: published)"
    parser.add_argument("--step", metavar="FILE|SECONDS", help=step)
    parser.add_argument("--images-per-node", type=int, help="of that step (default: the file's, or 112)")
    parser.add_argument("--ranks-per-node", type=int, help="ranks per node (default: one per die)")
    parser.add_argument("--collectives", default="hierarchical", help="of hierarchical, ring; one curve each")
    wires = "wire types among fp32, bf16; one curve each, if hierarchical"
    parser.add_argument("--wire", dest="wires", default="fp32", help=wires)
    parser.add_argument("--bucket-mb", type=float, help="bucket size in MB (default: dithc's rule)")
    parser.add_argument("--zero1", action="store_true", help="shard the optimizer state")
    local = "also local updates with this number of steps, each node a worker"
    parser.add_argument("--local-steps", type=int, metavar="STEPS", help=local)
    spread = "spread of speeds (default: fitted on LX2, or 0)"
    parser.add_argument("--stragglers", type=float, dest="spread", metavar="SPREAD", help=spread)
    arguments.add_option(parser, "--fixed-step-seconds", 0.0, "time per step without images")
    arguments.add_option(parser, "--steps", 32, "steps averaged per point")
    arguments.add_option(parser, "--seed", 0, "seed of the stragglers")
    paper = "also compare with the paper's scaling"
    parser.add_argument("--reproduce-paper", dest="reproduces_paper", action="store_true", help=paper)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curves and all inputs")


def run(args: argparse.Namespace) -> int:
    """Simulate and print a table. Return 1 if the paper is not reproduced."""
    from dithc.engine.hardware import description

    _check_ranges(args)
    step = step_of(args.step)
    description.read(args.machine)  # raises an error before the slow imports
    from dithc.bench.simulate import SimulationSettings, format_curves, run_simulation
    from dithc.cli.bench import arguments
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed

    settings = arguments.settings_of(SimulationSettings, args, step=step)
    result = run_simulation(settings)
    print(format_curves(result))
    if args.json:
        outputs.write(args.json, dump_checksummed(result, allow_nan=True))
    validation = result.get("validation")
    return (
        0
        if validation is None or all(row["within"] for row in [*validation["seconds"], validation["efficiency"]])
        else 1
    )


def _check_ranges(args: argparse.Namespace) -> None:
    for name, (is_right, expected) in RANGES.items():
        argument, option = getattr(args, name), OPTIONS.get(name, f"--{name.replace('_', '-')}")
        values = argument if isinstance(argument, tuple) else () if argument is None else (argument,)
        if not all(map(is_right, values)):
            got = ", ".join(map(str, values))
            raise user_error(f"simulate {option}", got=got, expected=expected, fix=f"correct {option}")


def step_of(text: str | None) -> float | Path | None:
    """Parse a number of seconds, or the path of a file; UserError if it is neither a time nor a file."""
    if text is None:
        return None
    try:
        step: float | Path = float(text)
    except ValueError:
        step = Path(text)
    if not (step.is_file() if isinstance(step, Path) else 0 < step < float("inf")):
        expected = "seconds above 0, or the JSON file of `dithc bench step` or `dithc bench scaling`"
        raise user_error("--step", got=text, expected=expected, fix="correct --step")
    return step
