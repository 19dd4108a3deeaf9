"""`dithc latents`: encodes the tiles of a data set, their mirror images and turned ones if asked, once and for all trainings."""

import argparse
import time
from pathlib import Path

from dithc.config import load, named
from dithc.log import problem
from dithc.runs import Manifest

SUMMARY = "Encodes views of tiles into fp16 shards of mean and log-variance; resumes shard by shard."
EXAMPLE = (
    "dithc latents --config config/experiments/demo.yaml --dataset landscape --tiles "
    "results/demo/tiles/landscape/manifest.json --codec results/demo/codecs/landscape-vae/manifest.json --out "
    "results/demo/latents/landscape/manifest.json\n"
    "dithc latents --config config/experiments/demo.yaml --dataset sentinel2 --tiles "
    "results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json --out "
    "results/demo/latents/sentinel2/manifest.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--dataset", required=True, help="name in the section `datasets`")
    parser.add_argument("--tiles", type=Path, required=True, help="manifest of the data set's tiles")
    parser.add_argument("--codec", type=Path, nargs="?", help="manifest of the trained codec, for one of kind kl-vae")
    parser.add_argument("--out", type=Path, required=True, help="manifest to write; the shards stand beside it")
    parser.add_argument("--shard-size", type=int, default=4096, help="tiles of a shard (default 4096)")
    parser.add_argument("--batch", type=int, default=32, help="tiles encoded at once (default 32)")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out).parent


def run(args: argparse.Namespace) -> int:
    """Encodes what is not there yet, then writes the manifest."""
    from dithc.data import Tiles
    from dithc.latents import Latents, open_codec

    start = time.monotonic()
    experiment = load(args.config)
    dataset = named(experiment.datasets, args.dataset, key="datasets")
    name = dataset.codec
    settings = experiment.codecs[name]
    inputs = {str(args.tiles): Manifest.read(args.tiles, stage="tiles")}
    if args.codec is not None:
        inputs[str(args.codec)] = Manifest.read(args.codec, stage="codec")
    elif settings.kind == "kl-vae":
        raise problem(
            f"codec {name!r} of data set {args.dataset!r} is trained, and no trained one is given",
            got="no --codec",
            expected="--codec MANIFEST of `dithc codec`",
            remedy=f"run `dithc codec --codec {name}` and pass its manifest",
        )
    tiles = Tiles(args.tiles.parent)
    codec = open_codec(settings, info=tiles.info, folder=args.codec.parent if args.codec else None)
    folder = args.out.parent
    numbers = Latents.encode(
        tiles,
        codec,
        folder,
        tiles_digest=inputs[str(args.tiles)].digest,
        views=dataset.views,
        shard_size=args.shard_size,
        batch=args.batch,
    )
    paths = [*sorted(folder.glob("*.npy")), *sorted(folder.glob("*-*.json")), folder / "index.json"]
    Manifest(
        stage="latents",
        name=args.dataset,
        spec=Manifest.spec_of(experiment, "latents", args.dataset),
        inputs={path: manifest.digest for path, manifest in inputs.items()},
        files=Manifest.entries(folder, paths),
        numbers={**numbers, "codec": codec.id},
        seconds=time.monotonic() - start,
    ).write(args.out)
    return 0
