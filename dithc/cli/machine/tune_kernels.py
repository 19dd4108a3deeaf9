"""`dithc tune-kernels`: finds and stores the fastest implementation of each matrix product of a model on this machine."""

import argparse
from pathlib import Path

SUMMARY = "Search the blocking, splits and threads of each matrix product of a model here, including torch's product."
EXAMPLE = "dithc tune-kernels --model DiT-XL/2 --batch 4 --dtype bf16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the batch and the output file."""
    from dithc.cli.bench import add_dtypes, add_number, add_override

    parser.add_argument("--model", default="DiT-XL/2", help="preset (default DiT-XL/2)")
    add_override(parser)
    add_number(parser, "--batch", 4, "images per step and process")
    add_dtypes(parser)
    parser.add_argument("--threads", type=int, help="compute threads per process (default: the core plan's)")
    add_number(parser, "--rounds", 15, "timed rounds per decision")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file, not to that of training")
    parser.add_argument("--show", action="store_true", help="print the existing tuning and exit")


def run(args: argparse.Namespace) -> int:
    """Search, or only show the tuning. Print one line per product."""
    from dithc.bench import operators, summary
    from dithc.cli.bench import settings_of
    from dithc.core.artifacts import outputs

    if args.show:
        print(summary(operators.show_tuning(threads=args.threads, output=args.output)).text())
        return 0
    if args.output:
        outputs.check_file(args.output)
    print(summary(operators.tune(settings_of(operators.TuneSettings, args))).text())
    return 0
