"""`dithc bench data`: staging beside bare decodes of the same files."""

import argparse
from pathlib import Path

from dithc.cli.bench.arguments import Kind, add_json, tell
from dithc.log import problem


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--of", choices=("product", "pictures"), default="product", help="a Sentinel-2 product, or a class folder"
    )
    parser.add_argument(
        "--size", type=int, help="side in pixels: of a product 2196 (default) to 10980; of pictures about 400 (default)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default 3)")
    parser.add_argument("--threads", type=int, help="cores of `dithc stage` (default: all there are)")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where files stand meanwhile: a whole product takes 8 GB (default: TMPDIR)",
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="DIR",
        help="a folder with one L2A product, or class folders of pictures, instead of generated",
    )
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    from dithc.bench import staging

    for name in ("rounds", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise problem(f"--{name} is wrong", got=value, expected="1 or more", remedy="give another number")
    size = args.size or (2196 if args.of == "product" else 400)
    places = {"folder": args.folder, "inputs": args.inputs}
    settings = staging.StagingSettings(of=args.of, size=size, rounds=args.rounds, threads=args.threads, **places)
    return tell(staging.bench_staging(settings), args.json, [])


DATA = Kind(
    "staging beside bare decodes of the same files",
    "dithc bench data --of pictures --rounds 3 --json data.json",
    _add,
    _run,
)
