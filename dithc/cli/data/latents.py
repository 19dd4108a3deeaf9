"""`dithc latents`: encodes the tiles of a dataset, and mirrored and rotated views on request."""

import argparse
from pathlib import Path

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.logging import user_error

SUMMARY = "Encodes views of tiles into fp16 shards of mean and log-variance; resumes shard by shard."
EXAMPLE = (
    "dithc latents --config config/experiments/demo.yaml --dataset landscape --tiles "
    "results/demo/tiles/landscape/manifest.json --codec results/demo/codecs/landscape-vae/manifest.json --out "
    "results/demo/latents/landscape/manifest.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "dataset")
    parser.add_argument("--tiles", type=Path, required=True, help="manifest of the dataset's tiles")
    parser.add_argument("--codec", type=Path, nargs="?", help="manifest of the trained codec, for kind kl-vae")
    add_out(parser, "the shards are written")
    parser.add_argument("--shard-size", type=int, default=4096, help="tiles per shard (default 4096)")
    parser.add_argument("--batch", type=int, default=32, help="tiles per forward pass (default 32)")


def run(args: argparse.Namespace) -> int:
    """Encode missing shards, then write the manifest."""
    from dithc.config import load
    from dithc.data import Tiles
    from dithc.latents import Latents, open_codec

    record = CommandRecord(load(args.config), "latents", args.dataset, args.out)
    dataset = record.experiment.entry(record.experiment.datasets, args.dataset)
    name = dataset.codec
    settings = record.experiment.codecs[name]
    tiles_digest = record.read(args.tiles, "tiles").digest
    if args.codec is not None:
        record.read(args.codec, "codec")
    elif settings.kind == "kl-vae":
        raise user_error(
            f"codec {name!r} of dataset {args.dataset!r} requires trained weights",
            got="no --codec",
            expected="--codec MANIFEST of `dithc codec`",
            fix=f"run `dithc codec --codec {name}` and pass its manifest",
        )
    record.check()
    tiles = Tiles(args.tiles.parent)
    codec = open_codec(settings, info=tiles.info, folder=args.codec.parent if args.codec else None)
    record.claim()
    numbers = Latents.encode(
        tiles,
        codec,
        record.folder,
        tiles_digest=tiles_digest,
        views=dataset.views,
        clusters=dataset.clusters,
        shard_size=args.shard_size,
        batch=args.batch,
    )
    record.write({**numbers, "codec": codec.id}, record.files())
    return 0
