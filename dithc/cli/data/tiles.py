"""`dithc tiles`: cuts the scenes of a data set into tiles."""

import argparse
import time
from pathlib import Path

from dithc.log import logger
from dithc.runs import Manifest

SUMMARY = "Cuts staged scenes into tiles of one size, splits them by place, and measures the train tiles."
EXAMPLE = (
    "dithc tiles --config config/experiments/demo.yaml --dataset landscape --scenes "
    "results/demo/scenes/landscape/manifest.json --out results/demo/tiles/landscape/manifest.json\n"
    "dithc tiles --config config/experiments/demo.yaml --dataset sentinel2 --scenes "
    "results/demo/scenes/sentinel2/manifest.json --out results/demo/tiles/sentinel2/manifest.json"
)
log = logger("dithc.tiles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--dataset", required=True, help="name in the section `datasets`")
    parser.add_argument("--scenes", type=Path, required=True, help="manifest of the staged scenes")
    parser.add_argument("--out", type=Path, required=True, help="manifest to write; the tiles stand beside it")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out).parent


def run(args: argparse.Namespace) -> int:
    """Cuts; what an earlier run left stays as it was unless all goes well."""
    from dithc.config import load, named
    from dithc.data import cut_tiles

    start = time.monotonic()
    experiment = load(args.config)
    dataset = named(experiment.datasets, args.dataset, key="datasets")
    scenes = Manifest.read(args.scenes, stage="stage")
    folder = args.out.parent
    numbers = cut_tiles(dataset, args.scenes.parent, out=folder, seed=experiment.seed)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    Manifest(
        stage="tiles",
        name=args.dataset,
        spec=Manifest.spec_of(experiment, "tiles", args.dataset),
        inputs={str(args.scenes): scenes.digest},
        files=Manifest.entries(folder, [folder / name for name in names if folder / name != args.out]),
        numbers=numbers,
        seconds=time.monotonic() - start,
    ).write(args.out)
    splits = ", ".join(f"{count} {split}" for split, count in numbers["splits"].items())
    log.info(f"{numbers['accepted']} tiles of {args.dataset} ({splits}) in {folder}")
    return 0
