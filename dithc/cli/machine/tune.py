"""`dithc tune`: finds and keeps the fastest way to make each matrix product of a model on this machine."""

import argparse
from pathlib import Path

SUMMARY = "Search blocking, cuts and threads of each matrix product of a model here, torch's own product among them."
EXAMPLE = "dithc tune --model DiT-XL/2 --batch 4 --dtype bf16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the model, the batch and the file."""
    from dithc.cli.bench import add_override

    parser.add_argument("--model", default="DiT-XL/2", help="preset (default DiT-XL/2)")
    add_override(parser)
    parser.add_argument("--batch", type=int, default=4, help="images per step and process (default 4)")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "both"), default="both", help="of the products")
    parser.add_argument("--threads", type=int, help="compute threads of a process (default: the core plan's)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each decision (default 15)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write there instead of where training looks for it"
    )
    parser.add_argument("--show", action="store_true", help="print what is tuned already, search nothing")


def run(args: argparse.Namespace) -> int:
    """Searches, or only shows; prints a line for each product."""
    from dithc.bench import operators, table
    from dithc.runs import outputs

    if args.show:
        print(table(operators.show_tuning(threads=args.threads, output=args.output)))
        return 0
    if args.output:
        outputs.check_file(args.output)
    settings = operators.TuneSettings(
        model=args.model,
        overrides=dict(args.override),
        batch=args.batch,
        dtypes=("fp32", "bf16") if args.dtype == "both" else (args.dtype,),
        threads=args.threads,
        rounds=args.rounds,
        output=args.output,
    )
    print(table(operators.tune(settings)))
    return 0
