"""`dithc extractor`: trains a small classifier on tiles, for experiments that have no published feature extractor."""

import argparse
import time
from pathlib import Path

from dithc.log import problem
from dithc.runs import Manifest

SUMMARY = (
    "Trains a small classifier on a data set's tiles; its features stand in for Inception's and compare with nothing."
)
EXAMPLE = (
    "dithc extractor --config config/experiments/demo.yaml --extractor landscape-classifier --tiles "
    "results/demo/tiles/landscape/manifest.json --out results/demo/extractors/landscape-classifier/manifest.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--extractor", required=True, help="name in the section `extractors`")
    parser.add_argument("--tiles", type=Path, required=True, help="manifest of the tiles to train on")
    parser.add_argument("--out", type=Path, required=True, help="manifest to write; the weights stand beside it")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out).parent


def run(args: argparse.Namespace) -> int:
    """Trains on the train tiles as they are displayed, with the classes of their scenes."""
    from dithc.config import codecs, load, named
    from dithc.data import Tiles
    from dithc.evaluate import train_classifier

    start = time.monotonic()
    experiment = load(args.config)
    settings = named(experiment.extractors, args.extractor, key="extractors")
    if settings.kind != "classifier" or not isinstance(settings, codecs.Extractor):
        raise problem(
            f"extractor {args.extractor!r} is not trained here",
            got=f"kind {settings.kind}",
            expected="kind classifier",
            remedy="pass it to `dithc features` as it is",
        )
    manifest = Manifest.read(args.tiles, stage="tiles")
    tiles = Tiles(args.tiles.parent)
    rows = tiles.rows("train")
    folder = args.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "classifier.safetensors"
    numbers = train_classifier(
        tiles.rgb(rows),
        tiles.labels[rows],
        path=path,
        steps=settings.steps,
        batch=settings.batch,
        seed=experiment.seed,
        defects=settings.defects,
    )
    Manifest(
        stage="extractor",
        name=args.extractor,
        spec=Manifest.spec_of(experiment, "extractor", args.extractor),
        inputs={str(args.tiles): manifest.digest},
        files=Manifest.entries(folder, [path]),
        numbers={**numbers, "path": path.name},
        seconds=time.monotonic() - start,
    ).write(args.out)
    return 0
