"""`dithc tiles`: cuts the scenes of a dataset into tiles."""

import argparse
from pathlib import Path

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.logging import get_logger

SUMMARY = "Cuts ingested scenes into tiles of one size, splits them by location, and measures the train tiles."
EXAMPLE = (
    "dithc tiles --config config/experiments/demo.yaml --dataset landscape --scenes "
    "results/demo/scenes/landscape/manifest.json --out results/demo/tiles/landscape/manifest.json"
)
log = get_logger("dithc.tiles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "dataset")
    parser.add_argument("--scenes", type=Path, required=True, help="manifest of the ingested scenes")
    add_out(parser, "the tiles are written")


def run(args: argparse.Namespace) -> int:
    """Cut the tiles. Earlier output stays unchanged until all succeed."""
    from dithc.config import load
    from dithc.data import cut_tiles

    record = CommandRecord(load(args.config), "tiles", args.dataset, args.out)
    dataset = record.experiment.entry(record.experiment.datasets, args.dataset)
    record.check()
    record.read(args.scenes, "ingest")
    numbers = cut_tiles(dataset, args.scenes.parent, out=record.folder, seed=record.experiment.seed)
    record.write(numbers, record.files())
    splits = ", ".join(f"{count} {split}" for split, count in numbers["splits"].items())
    log.info(f"{numbers['accepted']} tiles of {args.dataset} ({splits}) in {record.folder}")
    return 0
