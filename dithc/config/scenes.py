"""Settings of generated scenes: images larger than the tiles that a network was trained on."""

from typing import Any, Protocol

from pydantic import Field, model_validator

from dithc.config.base import Settings

LARGEST_SCENE = 1 << 16  # pixels per side; the latent of the scene is in memory, and one band takes 8 GiB on disk
LARGEST_OVERLAP = 0.9  # share of a side; a hundred predictions of each pixel


class Windows(Settings):
    """Sampling of a scene larger than the tiles: each step evaluates the network on windows of the tile size."""

    overlap: float = Field(default=0.25, ge=0.0, le=LARGEST_OVERLAP)
    """Share of a window's side that overlaps the next window. Predictions are averaged there, with weights that fall
    toward the border of each window (MultiDiffusion). The network is evaluated 1 / (1 - overlap)^2 times per pixel and
    step: 1.8 times with 0.25, 4 times with 0.5."""
    shift: bool = False
    """Shift the grid of windows in each step by an offset derived from (seed, timestep), so that borders move
    (SpotDiffusion). Windows then need no overlap: `overlap: 0, shift: true` has the fewest evaluations."""

    @model_validator(mode="after")
    def _without_seams(self) -> "Windows":
        if self.overlap == 0.0 and not self.shift:
            raise ValueError("windows without overlap and shift leave seams: set `overlap: 0.25` or `shift: true`")
        return self


class Sized(Protocol):
    """Fields of an evaluation that the checks of scenes read."""

    run: str
    at: Any
    images: int
    size: int | None
    windows: Windows | None
    metrics: Any
    triplets: Any


def check_scene(evaluation: Sized) -> None:
    """Raise ValueError if settings of scenes contradict other settings."""
    windows = evaluation.windows
    if windows is None and evaluation.images < 2:
        raise ValueError(
            "`images` is 1, and a score compares at least two: raise it (a scene has `windows`, and no score)"
        )
    if windows is not None and evaluation.size is None:
        raise ValueError("`windows` require the `size` of a scene: set it, such as 4096, or leave `windows` out")
    if evaluation.at == "codec" and (evaluation.size or windows):
        raise ValueError("`size` and `windows` apply to generated images, and `at` is codec: leave them out")
    if windows is not None and (evaluation.metrics or evaluation.triplets):
        raise ValueError(
            "`metrics` and `triplets` belong to scores, and a scene (`windows`) has no score: leave them out"
        )


def check_size(where: str, evaluation: Sized, *, tile: int, factor: int) -> None:
    """Raise ValueError unless images have the tile size or consist of windows.

    Args:
        where: Key of the evaluation.
        evaluation: Settings of the evaluation.
        tile: Side in pixels of the training tiles.
        factor: Downsampling factor of the codec.
    """
    size, run = evaluation.size, evaluation.run
    if size is None or size == tile:
        return
    if size < tile:
        raise ValueError(
            f"{where}.size {size} is smaller than the tiles of runs.{run} ({tile}): leave it out, or train on smaller tiles"
        )
    if evaluation.windows is None:
        raise ValueError(
            f"{where}.size {size} is larger than the tiles of runs.{run} ({tile}), and a network generates images of the tile "
            "size only: add `windows: {overlap: 0.25}`, or train a run on tiles of that size"
        )
    if size % factor:
        raise ValueError(
            f"{where}.size {size} is not a multiple of the codec's factor {factor}: use {size // factor * factor}"
        )
