"""dithc synthesize: writes small invented inputs with the structure of real ones."""

import argparse
from pathlib import Path

SUMMARY = "Write small invented inputs with the structure of real ones; the same arguments give the same bytes."
EXAMPLE = "dithc synthesize --kind sentinel2 --out results/inputs/sentinel2 --seed 1 --scenes 2 --size 768"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "--kind", required=True, choices=("sentinel2", "gaofen2", "image-folder"), help="what to invent"
    )
    parser.add_argument("--out", required=True, type=Path, help="folder to make; a finished one is left as it is")
    parser.add_argument("--seed", type=int, default=0, help="chooses the landscapes (default 0)")
    parser.add_argument("--scenes", type=int, default=1, help="products, or pictures a class (default 1)")
    parser.add_argument("--size", type=int, help="side in pixels (default 768; pictures: the crop, 256)")
    parser.add_argument("--classes", type=int, help="image-folder only: number of classes, 1 to 8 (default 4)")
    parser.add_argument("--gsd", type=float, help="gaofen2 only: metres per pixel (default 4)")


def run(args: argparse.Namespace) -> int:
    """Writes the inputs; returns the exit status."""
    from dithc.data.synthetic import synthesize

    record = synthesize(
        args.kind,
        args.out,
        seed=args.seed,
        scenes=args.scenes,
        size=args.size,
        classes=args.classes,
        gsd=args.gsd,
    )
    print(record)
    return 0
