"""`dithc tune-kernels`: finds and stores the fastest implementation of each matrix product of a model on this machine."""

import argparse
from pathlib import Path

SUMMARY = "Search the blocking, splits and threads of each matrix product of a model here, including torch's product."
EXAMPLE = "dithc tune-kernels --model DiT-XL/2 --batch 4 --dtype bf16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dithc.cli.bench import arguments

    arguments.add_option(parser, "--model", "DiT-XL/2", "preset")
    arguments.add_override(parser)
    arguments.add_option(parser, "--batch", 4, "images per step and process")
    arguments.add_dtypes(parser)
    parser.add_argument("--threads", type=int, help="compute threads per process (default: the core plan's)")
    arguments.add_option(parser, "--rounds", 15, "timed rounds per decision")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to this file, not to that of training")
    parser.add_argument("--show", action="store_true", help="print the existing tuning and exit")


def run(args: argparse.Namespace) -> int:
    """Search, or only show the tuning. Print one line per product."""
    from dithc.bench import operators, summary
    from dithc.cli.bench import arguments
    from dithc.core.artifacts import outputs

    if args.show:
        print(summary(operators.show_tuning(threads=args.threads, out=args.out)).text())
        return 0
    if args.out:
        outputs.check_file(args.out)
    print(summary(operators.tune(arguments.settings_of(operators.TuneSettings, args))).text())
    return 0
