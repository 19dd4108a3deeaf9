"""`dithc tiles`: cuts the scenes of a dataset into tiles."""

import argparse
from pathlib import Path

from dithc.cli.stage_context import CommandRecord, add_of, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.logging import get_logger

SUMMARY = "Cuts ingested scenes into tiles of one size, splits them by location, and measures the train tiles."
EXAMPLE = (
    "dithc tiles --config config/experiments/demo.yaml --dataset landscape --scenes "
    "results/demo/scenes/landscape/manifest.json --out results/demo/tiles/landscape/manifest.json"
)
log = get_logger("dithc.tiles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_of(parser, "dataset")
    parser.add_argument("--scenes", type=Path, required=True, help="manifest of the ingested scenes")
    add_out(parser, "the tiles are written")


def run(args: argparse.Namespace) -> int:
    """Cut the tiles. Earlier output stays unchanged until all succeed."""
    from dithc.config import get_entry, load
    from dithc.data import cut_tiles

    making = CommandRecord(load(args.config), "tiles", args.dataset, args.out)
    dataset = get_entry(making.experiment.datasets, args.dataset, key="datasets")
    making.check()
    making.read(args.scenes, "ingest")
    numbers = cut_tiles(dataset, args.scenes.parent, out=making.folder, seed=making.experiment.seed)
    making.write(numbers, making.files())
    splits = ", ".join(f"{count} {split}" for split, count in numbers["splits"].items())
    log.info(f"{numbers['accepted']} tiles of {args.dataset} ({splits}) in {making.folder}")
    return 0
