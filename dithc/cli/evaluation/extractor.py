"""`dithc extractor`: trains a small classifier on tiles, for experiments without a published feature extractor."""

import argparse
from pathlib import Path

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.logging import user_error

SUMMARY = (
    "Trains a small classifier on a dataset's tiles. Its features replace Inception's, but the scores are not "
    "comparable with published scores."
)
EXAMPLE = (
    "dithc extractor --config config/experiments/demo.yaml --extractor landscape-classifier --tiles "
    "results/demo/tiles/landscape/manifest.json --out results/demo/extractors/landscape-classifier/manifest.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "extractor")
    parser.add_argument("--tiles", type=Path, required=True, help="manifest of the tiles to train on")
    add_out(parser, "the weights are written")


def run(args: argparse.Namespace) -> int:
    """Train on the train tiles as displayed, with the classes of their scenes."""
    from dithc.config import codecs, load
    from dithc.data import Tiles
    from dithc.evaluate import train_classifier

    record = CommandRecord(load(args.config), "extractor", args.extractor, args.out)
    settings = record.experiment.entry(record.experiment.extractors, args.extractor)
    if settings.kind != "classifier" or not isinstance(settings, codecs.ExtractorConfig):
        raise user_error(
            f"extractor {args.extractor!r} is not trained by dithc",
            got=f"kind {settings.kind}",
            expected="kind classifier",
            fix="pass it to `dithc features` directly",
        )
    record.check()
    record.read(args.tiles, "tiles")
    tiles = Tiles(args.tiles.parent)
    rows = tiles.rows("train")
    record.claim()
    path = record.folder / "classifier.safetensors"
    numbers = train_classifier(
        tiles.rgb(rows),
        tiles.labels[rows],
        path=path,
        steps=settings.steps,
        batch=settings.batch,
        seed=record.experiment.seed,
        defects=settings.train_on_defects,
    )
    record.write({**numbers, "path": path.name}, [path])
    return 0
