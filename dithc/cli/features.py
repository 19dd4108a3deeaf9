"""`dithc features`: features of real tiles or of generated images, and their statistics."""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.log import problem
from dithc.runs import Manifest, digest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dithc.config import Experiment
    from dithc.data import Rows
    from dithc.evaluate import Extractor

SUMMARY = "Extracts features of real tiles (--tiles, --split) or of generated images (--samples), and their statistics."
EXAMPLE = (
    "dithc features --config results/demo/config.json --extractor landscape-classifier "
    "--trained results/demo/extractors/landscape-classifier/manifest.json "
    "--tiles results/demo/tiles/sentinel2/manifest.json --split all "
    "--out results/demo/features/sentinel2.all.landscape-classifier/manifest.json"
)
BATCH = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--extractor", required=True, help="name in the section `extractors`")
    parser.add_argument("--trained", type=Path, nargs="?", help="manifest of the extractor, if it is trained here")
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--tiles", type=Path, help="manifest of real tiles")
    images.add_argument("--samples", type=Path, help="manifest of generated images")
    parser.add_argument("--split", choices=["train", "val", "test", "all"], default="all", help="real tiles to take")
    parser.add_argument(
        "--images", default="all", metavar="N", help="how many of them, chosen by the seed (default all)"
    )
    parser.add_argument(
        "--turned",
        action="store_true",
        help="also of up to 2,048 images (of tiles: those that are not for training) turned and mirrored: to search copies",
    )
    parser.add_argument("--out", type=Path, required=True, help="manifest to write; features stand beside it")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out).parent


def run(args: argparse.Namespace) -> int:
    """Extracts; shards that an earlier run finished are used again."""
    from dithc.config import load
    from dithc.evaluate import extract

    start = time.monotonic()
    experiment = load(args.config)
    images_from = args.tiles or args.samples
    source = Manifest.read(images_from, stage="tiles" if args.tiles else "sample")
    inputs = {str(images_from): source.digest}
    if args.trained:
        inputs[str(args.trained)] = Manifest.read(args.trained, stage="extractor").digest
    extractor = open_extractor(experiment, args.extractor, args.trained)
    images = _of_tiles(args, seed=experiment.seed) if args.tiles else _of_samples(args.samples.parent, source)
    folder = args.out.parent
    numbers = extract(
        images.batches,
        extractor,
        folder,
        total=images.total,
        batch=BATCH,
        set_hash=digest([source.digest, images.stretch, *([args.split, args.images] if args.tiles else [])]),
        stretch=images.stretch,
        turned=images.not_learnt if args.turned else None,
        images_of=images.chosen,
    )
    Manifest(
        stage="features",
        name=folder.name,
        spec=Manifest.spec_of(experiment, "features", args.extractor),
        inputs=inputs,
        files=Manifest.entries(
            folder,
            [
                *sorted(folder.glob("shard-*")),
                folder / "stats.npz",
                folder / "features.json",
                *sorted(folder.glob("turned.*")),
            ],
        ),
        numbers=numbers,
        seconds=time.monotonic() - start,
    ).write(args.out)
    return 0


def open_extractor(experiment: "Experiment", name: str, trained: Path | None) -> "Extractor":
    """An extractor of the configuration.

    Args:
        experiment: the configuration.
        name: in its section `extractors`.
        trained: the manifest of one that the workflow trains.

    Raises:
        UserError: no such name, no manifest of a trained one, or weights that cannot be read.
    """
    from dithc.config import named
    from dithc.evaluate import load_extractor

    settings = named(experiment.extractors, name, key="extractors")
    if settings.kind != "classifier":
        assert settings.path is not None
        return load_extractor(settings.kind, Path(settings.path), resize=settings.resize, trust=settings.trust)
    if trained is None:
        raise problem(
            f"extractor {name!r} is trained by the workflow",
            got="no --trained",
            expected="the manifest that `dithc extractor` wrote",
            remedy="run `dithc extractor` first and pass its manifest as --trained",
        )
    return load_extractor("classifier", Manifest.whole(trained.parent / "classifier.safetensors"))


def _chosen(rows: "Rows", images: str, *, seed: int) -> "Rows":
    """All rows, or as many as asked for, drawn without replacement by the seed and in their order."""
    import numpy as np

    if images == "all":
        return rows
    if not images.isdigit() or not 2 <= int(images) <= len(rows):
        raise problem(
            "number of real images",
            got=f"--images {images} of {len(rows)} tiles",
            expected=f"`all`, or 2 to {len(rows)}",
            remedy="lower `real_images` of the evaluation, or take another split",
        )
    return np.sort(np.random.default_rng(seed).permutation(rows)[: int(images)])


@dataclass(frozen=True)
class _Images:
    """A set of images.

    Attributes:
        batches: all of them, in order.
        total: how many.
        stretch: of their display.
        not_learnt: numbers, which rise, of those that no training saw.
        chosen: gives images by number.
    """

    batches: "Iterator[NDArray[np.uint8]]"
    total: int
    stretch: str
    not_learnt: "Rows"
    chosen: "Callable[[Rows], NDArray[np.uint8]]"


def _of_tiles(args: argparse.Namespace, *, seed: int) -> _Images:
    import numpy as np

    from dithc.data import Tiles

    tiles = Tiles(args.tiles.parent)
    rows = _chosen(tiles.rows(args.split), args.images, seed=seed)
    return _Images(
        batches=(tiles.rgb(rows[first : first + BATCH]) for first in range(0, len(rows), BATCH)),
        total=len(rows),
        stretch=digest(tiles.info["display"]),
        not_learnt=np.flatnonzero(~np.isin(rows, tiles.rows("train"))),
        chosen=lambda numbers: tiles.rgb(rows[numbers]),
    )


def _of_samples(folder: Path, samples: Manifest) -> _Images:
    import numpy as np

    names = [entry["path"] for entry in samples.files if Path(entry["path"]).name.startswith("rgb-")]
    shards = (np.load(Manifest.whole(folder / name), mmap_mode="r") for name in names)
    total = int(samples.numbers["images"])

    def chosen(numbers: "Rows") -> "NDArray[np.uint8]":
        every = [np.load(Manifest.whole(folder / name), mmap_mode="r") for name in names]
        starts = np.cumsum([0, *map(len, every)])
        places = np.searchsorted(starts, numbers, side="right") - 1
        return np.stack([every[place][number - starts[place]] for place, number in zip(places, numbers, strict=True)])

    return _Images(shards, total, samples.numbers["stretch"], np.arange(total), chosen)
