"""Mosaics of a dataset: generated images, their nearest real tiles, random tiles, false colors, stages of training.

Legend: n images, S side of an image, H, W mosaic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dithc.data import downsample, mosaic
from dithc.report.figures import canvas
from dithc.report.formatting import score
from dithc.report.galleries.image_sets import RGB, RealTiles, Scaled, first_images, first_scaled, nearest_tiles
from dithc.report.records import DatasetRecord, EvaluationRecord, ReportRecords

COLUMNS = 4
SHOWN = COLUMNS * COLUMNS
GRAY = 150  # level between images, which suits light and dark pages
MAX_SIDE = 256  # pixels of an image; larger images are averaged over blocks of pixels
SWIR = "vegetation is green, bare soil and rock are pink, water is black"
# Name, meaning, and bands as red, green and blue by sensor, of composites that are common in remote sensing.
COMPOSITES: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("color infrared", "vegetation is red", (("B08", "B04", "B03"), ("NIR", "R", "G"))),
    ("short-wave infrared", SWIR, (("B12", "B8A", "B04"), ("B11", "B8A", "B04"))),
)
FALSE_COLORS = "False colors"
STRIP = 4  # images of a preview
FIRST = f"the first {SHOWN}"
PAIRS, PAIRS_BY_ROW = 10, 5  # of a real and a generated image to distinguish


@dataclass(frozen=True, kw_only=True)
class Mosaic:
    """A mosaic as WebP, with its size in pixels, and `text` as the alternative."""

    title: str
    text: str
    caption: str
    webp: bytes
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Related mosaics; `note` explains them, `layout` selects the layout, the reader opens `answer`."""

    title: str
    note: str
    pictures: list[Mosaic]
    layout: Literal["", "four", "rows"] = ""
    answer: str = ""


def galleries(records: ReportRecords, dataset: str, item: EvaluationRecord | None) -> list[Gallery]:
    """Return the galleries of a dataset; `item` is the primary evaluation, None without evaluations."""
    record = records.dataset(dataset)
    if record.tiles_folder is None:
        return [gallery for gallery in (_clusters(record), _codec_gallery(record)) if gallery.pictures]
    real = RealTiles(record.tiles_folder, seed=records.seed, max_tiles=SHOWN)
    groups = []
    if item and item.files and (images := first_images(item.files.samples, SHOWN)) is not None:
        groups.append(_compare(records, record, item, images, real))
        groups.append(_pairs(records, record, item))
        groups.append(_false_colors(record, item, first_scaled(item.files.samples, SHOWN, bands=len(real.bands)), real))
    groups.append(_training_stages(records, record, item))
    groups.append(_clusters(record))
    groups.append(_codec_gallery(record))
    if not any(gallery.pictures for gallery in groups):
        groups = [Gallery(title="Real tiles", note="", pictures=[_real_mosaic(record, real)])]
    return [gallery for gallery in groups if gallery.pictures]


def preview_rows(records: ReportRecords, item: EvaluationRecord) -> list[Mosaic]:
    """Return a row of generated images and one of real tiles as a preview; empty without images."""
    dataset = records.dataset(item.dataset)
    generated = first_images(item.files.samples, STRIP) if item.files else None
    if generated is None or dataset.tiles_folder is None:
        return []
    real = RealTiles(dataset.tiles_folder, seed=records.seed, max_tiles=SHOWN).rgb(STRIP)
    return [
        build_mosaic("generated", generated, text=f"{len(generated)} images generated {item.label}.", columns=STRIP),
        build_mosaic("real", real, text=f"{len(real)} real tiles of {dataset.title}, drawn at random.", columns=STRIP),
    ]


def build_mosaic(
    title: str, images: NDArray[np.uint8], *, text: str, caption: str = "", columns: int = COLUMNS
) -> Mosaic:
    """Return a mosaic of images (n, 3, S, S) by rows."""
    pixels = mosaic(downsample(images, MAX_SIDE), columns=min(columns, len(images)), level=GRAY)
    return _encode(title, pixels, text=text, caption=caption)


def _encode(title: str, pixels: NDArray[np.uint8], *, text: str, caption: str = "") -> Mosaic:
    height, width = pixels.shape[:2]
    return Mosaic(title=title, text=text, caption=caption, webp=canvas.as_webp(pixels), width=width, height=height)


def _real_mosaic(dataset: DatasetRecord, real: RealTiles) -> Mosaic:
    images = real.rgb(SHOWN)
    text = f"{len(images)} real tiles of {dataset.title}, drawn at random, in {', '.join(real.tiles.info['display']['bands'])}."
    return build_mosaic("Real tiles at random", images, text=text)


def _compare(
    records: ReportRecords, dataset: DatasetRecord, item: EvaluationRecord, images: RGB, real: RealTiles
) -> Gallery:
    """Return generated images, their nearest real tiles, and random real tiles."""
    subject = f"{len(images)} images generated {item.label}, {dataset.title}"
    pictures = [build_mosaic(f"Generated, {item.label}", images, text=f"{subject}.", caption=f"{item.name}: {FIRST}")]
    nearest = nearest_tiles(item, real.tiles, seed=records.seed, count=len(images))
    note = f"Rendering of all three: {dataset.rendering}."
    if isinstance(nearest, str):
        note += f" The nearest real tiles are not shown: {nearest}."
    else:
        text = f"The nearest real tile in features of each image, at the same place; {dataset.title}."
        pictures.append(
            build_mosaic(
                "Nearest real tiles", real.tiles.rgb(nearest), text=text, caption="in features, place by place"
            )
        )
        note += " A generated image that equals its nearest tile was memorized."
    return Gallery(title="Generated and real", note=note, pictures=[*pictures, _real_mosaic(dataset, real)])


def _pairs(records: ReportRecords, dataset: DatasetRecord, item: EvaluationRecord) -> Gallery:
    """Return pairs of a real and a generated image in random order, not among the images of other galleries."""
    assert item.files is not None
    assert dataset.tiles_folder is not None
    images = first_images(item.files.samples, SHOWN + PAIRS)
    assert images is not None
    tiles = RealTiles(dataset.tiles_folder, seed=records.seed + 1, max_tiles=PAIRS).rgb(PAIRS)
    pairs = list(zip(tiles, images[SHOWN:], strict=False)) if tiles.shape[1:] == images.shape[1:] else []
    is_above = np.random.default_rng([records.seed, *dataset.name.encode()]).random(len(pairs)) < 0.5
    ordered = [pair if above else pair[::-1] for pair, above in zip(pairs, is_above, strict=True)]
    pictures = []
    for first in range(0, len(ordered), PAIRS_BY_ROW):
        part = ordered[first : first + PAIRS_BY_ROW]
        title = f"Pairs {first + 1} to {first + len(part)}"
        rows = np.stack([pair[side] for side in (0, 1) for pair in part])
        text = f"{title} of a real and a generated image, one above the other, {dataset.title}."
        pictures.append(build_mosaic(title, rows, text=text, columns=len(part)))
    places = [("above", np.flatnonzero(is_above) + 1), ("below", np.flatnonzero(~is_above) + 1)]
    answer = "; ".join(f"{place} in {', '.join(map(str, numbers))}" for place, numbers in places if len(numbers))
    note = "Each column is a pair of a real and a generated image in random order. Which one is real?"
    answer = f"Real images: {answer}."
    return Gallery(title="Real or generated", note=note, pictures=pictures, layout="rows", answer=answer)


def _false_colors(dataset: DatasetRecord, item: EvaluationRecord, generated: Scaled | None, real: RealTiles) -> Gallery:
    """Return the same images in invisible bands; empty without these bands."""
    pictures = []
    sides = (
        [] if generated is None else [(f"Generated, {item.label}", generated), ("Real tiles at random", real.scaled)]
    )
    for name, meaning, bands in composites(real.bands):
        indices = [real.bands.index(band) for band in bands]
        for title, scaled in sides:
            values = real.tiles.stretch.unscale(scaled)[:, indices]
            rgb, _ = real.tiles.stretch.levels(values, bands=indices)
            content = f"bands {', '.join(bands)} as red, green and blue; {meaning}"
            text = f"{title}, {len(rgb)} of {dataset.title} in {name}: {content}."
            pictures.append(build_mosaic(f"{title}: {name}", rgb, text=text, caption=f"{', '.join(bands)}: {meaning}"))
    note = "The same images and tiles; each band from percentile 1 to 99 of the train tiles."
    return Gallery(title=FALSE_COLORS, note=note, pictures=pictures, layout="four" if len(pictures) == 4 else "")


def _training_stages(records: ReportRecords, dataset: DatasetRecord, item: EvaluationRecord | None) -> Gallery:
    """Return the other evaluations: the same noise at other training steps, and the codec alone."""
    pictures = []
    for stage in records.evaluations_of(dataset.name):
        rgb = first_images(stage.files.samples, SHOWN) if stage.files and stage != item else None
        if rgb is not None:
            kind = "real tiles through the codec" if stage.checkpoint == "codec" else f"images generated {stage.label}"
            value = f"{records.measure} {score(stage.score.value(records.measure))}" if stage.score else ""
            title = kind.removeprefix("images ").capitalize()
            text = f"{len(rgb)} {kind}, {dataset.title}{': ' if value else ''}{value}."
            pictures.append(build_mosaic(title, rgb, text=text, caption=", ".join(filter(None, [stage.name, value]))))
    note = "Equal places use the same noise. The codec alone shows the loss of real tiles by the codec."
    return Gallery(title="Stages of training", note=note, pictures=pictures)


def _clusters(dataset: DatasetRecord) -> Gallery:
    """Return tiles of the clusters; empty without `clusters`."""
    pictures = []
    if dataset.cluster_grid is not None:
        title, text = "One cluster per row", f"Train tiles of {dataset.title}, one cluster per row."
        pictures.append(_encode(title, canvas.read_image(dataset.cluster_grid), text=text))
    note = f"The network learns {dataset.classes} groups of similar tiles as classes. Images are drawn from all in equal shares."
    return Gallery(title="Clusters", note=note, pictures=pictures, layout="rows")


def _codec_gallery(dataset: DatasetRecord) -> Gallery:
    """Return reconstructions of the codec trained on this dataset."""
    codec = dataset.codec
    bands = f"Each band of a tile: {', '.join(dataset.band_names)}"
    images = (
        (codec.grid, "Tiles above their reconstructions", "Tiles, and below each its reconstruction"),
        (codec.bands, "Bands of a tile above their reconstructions", bands),
    )
    pictures = []
    for path, title, text in images if codec.train_dataset in (None, dataset.name) else ():
        if path is not None:
            pictures.append(_encode(title, canvas.read_image(path), text=f"{text}; codec {codec.name}."))
    return Gallery(title=f"The codec, {codec.name}", note="", pictures=pictures, layout="rows")


def composites(bands: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, str, str]]]:
    """Yield name, meaning and bands of the composites of these bands."""
    for name, meaning, choices in COMPOSITES:
        for choice in choices:
            if set(choice) <= set(bands):
                yield name, meaning, choice
                break
