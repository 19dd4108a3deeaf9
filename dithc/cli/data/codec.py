"""`dithc codec`: trains an autoencoder on tiles with any number of bands."""

import argparse
from pathlib import Path
from typing import Any

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.artifacts import Manifest, atomic_write, digest
from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.core.logging import get_logger, user_error

SUMMARY = "Trains a KL autoencoder on the train tiles of a dataset. Diffusion models train on its latents."
EXAMPLE = (
    "dithc codec --config config/experiments/demo.yaml --codec landscape-vae --tiles "
    "results/demo/tiles/landscape/manifest.json --out results/demo/codecs/landscape-vae/manifest.json"
)
STAMP = "trained.json"
FILES = ("config.json", "autoencoder.safetensors", "codec.json", "grid.png", "bands.png")
log = get_logger("dithc.codec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "codec", which="; of kind kl-vae")
    parser.add_argument("--tiles", type=Path, required=True, help="manifest of the tiles to train on")
    add_out(parser, "the codec is written")


def run(args: argparse.Namespace) -> int:
    """Train, measure and write the codec, then its manifest."""
    from dithc.config import codecs, load
    from dithc.data import Tiles
    from dithc.latents import train_codec

    record = CommandRecord(load(args.config), "codec", args.codec, args.out)
    experiment, out = record.experiment, record.folder
    settings = experiment.codecs.get(args.codec)
    if not isinstance(settings, codecs.KlVaeConfig):
        trained = ", ".join(name for name, one in experiment.codecs.items() if one.kind == "kl-vae")
        raise user_error(
            f"codec {args.codec!r} is not trained by dithc",
            got=settings.kind if settings else "no such codec",
            expected=f"a codec of kind kl-vae: {trained or 'none is configured'}",
            fix="pass one of these, or add a codec to the section `codecs`",
        )
    record.check()
    identity = digest([record.spec, record.read(args.tiles, "tiles").digest])
    numbers = _trained_already(out, identity)
    if numbers is None:
        record.claim()
        record.output.plan([out / STAMP])
        numbers = train_codec(settings, Tiles(args.tiles.parent), out, seed=experiment.seed)
        files = Manifest.entries(out, [out / name for name in FILES])
        atomic_write(out / STAMP, dump_checksummed({"identity": identity, "numbers": numbers, "files": files}))
    record.write(numbers, [out / name for name in (*FILES, STAMP)])
    return 0


def _trained_already(folder: Path, identity: str) -> dict[str, Any] | None:
    """Return the numbers of an intact codec trained earlier from the same settings and tiles, or None."""
    try:
        stamp = load_checksummed(require_regular_file(folder / STAMP).read_text())
        whole = stamp["files"] == Manifest.entries(folder, [folder / name for name in FILES])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if stamp.get("identity") != identity or not whole:
        return None
    log.info(f"{folder} holds a codec trained from the same settings and tiles: reusing it")
    numbers: dict[str, Any] = stamp["numbers"]
    return numbers
