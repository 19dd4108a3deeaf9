"""Generated inputs with the structure of real data, so that the workflow runs on machines without data or network.

Purpose: demos and tests need images with learnable structure, and files with the pitfalls of real data: offsets, three
grids, a corner without data, a cloud, gray and small images.
Contents: `synthesize` writes Sentinel-2 products of level 2A, orthorectified Gaofen-2 scenes or an ImageNet-style class
folder. All show the same type of land: fields in Voronoi districts, a meandering river, roads, towns of rectangular
buildings, woods and hills under slanting light, with plausible spectra.
Invariants: the same arguments produce the same bytes in every process (one Philox stream per scene, no clock). A folder
appears complete or not at all. A folder with files of the user is never touched.
Extending: a new landscape is a row of `THEMES`. A new land cover is a row of `Cover` and of the spectra table. A new
kind of input is a module with a writer, a row of `LIMITS` and a branch in `_steps`.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from dithc.core.artifacts import outputs
from dithc.core.logging import progress, user_error
from dithc.data.synthetic import gaofen2, image_folder, safe, sentinel2
from dithc.data.synthetic.cover import THEMES

# The side of a Sentinel-2 tile is 10,980 pixels. Below 96 pixels its 60 m bands are only a few pixels wide.
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "sentinel2": {"scenes": (1, safe.MAX_PRODUCTS), "size": (96, 10_980)},
    "gaofen2": {"scenes": (1, gaofen2.MAX_SCENES), "size": (16, 16_384), "gsd": (0.5, 30.0)},
    "image-folder": {"scenes": (1, 10**6), "size": (16, 16_384), "classes": (1, len(THEMES))},
}
"""Range of each argument that the kind uses."""
__all__ = ["synthesize"]


def synthesize(
    kind: str, out: Path, *, seed: int = 0, scenes: int, size: int, classes: int = 4, gsd: float = 4.0
) -> None:
    """Write generated inputs to the folder `out`, the same bytes for equal arguments.

    Args:
        kind: `sentinel2` (products of level 2A, baseline 04.00), `gaofen2` or `image-folder`.
        out: Folder that is absent, empty, or an earlier output of this function, which is replaced.
        seed: Seed of the landscapes.
        scenes: Number of products, or of images per class.
        size: Side in pixels at the finest resolution (a multiple of 6 for Sentinel-2), or the crop size of the images.
        classes: Number of classes of `image-folder`.
        gsd: Meters per pixel of `gaofen2`.

    Raises:
        UserError: An argument is out of range, or `out` holds files that dithc did not write.
    """
    arguments = {"scenes": scenes, "size": size, "classes": classes, "gsd": gsd}
    for name, (low, high) in LIMITS[kind].items():
        if not low <= arguments[name] <= high:
            raise user_error(
                f"`synthetic.{name}` is out of range for {kind}",
                got=arguments[name],
                expected=f"{low:g} to {high:g}",
                fix="choose a number in the range",
            )
    steps = _steps(kind, seed=seed, scenes=range(scenes), size=size, classes=classes, gsd=gsd)
    with (
        outputs.OutputFolder(out).replaced(stage="synthesize") as folder,
        progress(total=len(steps), label=f"generating {kind}", unit="scene") as bar,
    ):
        for step in steps:
            step(folder)
            bar.update(1)


def _steps(kind: str, *, seed: int, scenes: range, size: int, classes: int, gsd: float) -> list[Callable[[Path], None]]:
    if kind == "sentinel2":
        products = [safe.SafeProduct(index=i, size=size) for i in scenes]
        return [partial(sentinel2.write_product, product=product, seed=seed) for product in products]
    if kind == "gaofen2":
        shots = [gaofen2.GaofenScene(index=i, size=size, gsd=gsd) for i in scenes]
        return [partial(gaofen2.write_scene, scene=shot, seed=seed) for shot in shots]
    steps: list[Callable[[Path], None]] = [
        partial(image_folder.write_photograph, label=label, number=i, size=size, seed=seed)
        for label in range(classes)
        for i in scenes
    ]
    return [*steps, partial(image_folder.write_class_index, classes=classes)]
