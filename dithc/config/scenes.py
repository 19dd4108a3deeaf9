"""Settings of generated scenes: images larger than the tiles that a network learnt."""

from typing import Any, Protocol

from pydantic import Field, model_validator

from dithc.config.base import Settings

LARGEST_SCENE = 1 << 16  # pixels of a side: the latent of a scene is in memory, and one band of it is 8 GiB on disk
LARGEST_OVERLAP = 0.9  # of a side: a hundred predictions of each place


class Windows(Settings):
    """How a network makes a scene larger than its tiles: at each step window by window, of the tiles' size."""

    overlap: float = Field(default=0.25, ge=0.0, le=LARGEST_OVERLAP)
    """Share of a window's side that the next window covers too. Predictions are averaged there, each the less the nearer its own
    window ends (MultiDiffusion). A network is called 1 / (1 - overlap)^2 times for each place and step: 1.8 times with 0.25, 4
    with 0.5."""
    shift: bool = False
    """Move the grid of windows from step to step by what follows from (seed, timestep), so that no place is at a border for long
    (SpotDiffusion). Then windows need not overlap: `overlap: 0, shift: true` calls the network least."""

    @model_validator(mode="after")
    def _without_seams(self) -> "Windows":
        if self.overlap == 0.0 and not self.shift:
            raise ValueError("windows that neither overlap nor shift leave seams: set `overlap: 0.25` or `shift: true`")
        return self


class Sized(Protocol):
    """What is looked at of an evaluation."""

    run: str
    at: Any
    images: int
    size: int | None
    windows: Windows | None
    metrics: Any
    triplets: Any


def check_scene(evaluation: Sized) -> None:
    """Raises a ValueError where settings of scenes contradict others."""
    windows = evaluation.windows
    if windows is None and evaluation.images < 2:
        raise ValueError(
            "`images` is 1, and a score compares two at least: raise it (a scene has `windows`, and no score)"
        )
    if windows is not None and evaluation.size is None:
        raise ValueError("`windows` are of a scene: give its `size`, such as 4096, or leave them out")
    if evaluation.at == "codec" and (evaluation.size or windows):
        raise ValueError("`size` and `windows` are of generated images, and `at` is codec: leave them out")
    if windows is not None and (evaluation.metrics or evaluation.triplets):
        raise ValueError("`metrics` and `triplets` are of scores, and a scene (`windows`) has none: leave them out")


def check_size(where: str, evaluation: Sized, *, tile: int, factor: int) -> None:
    """Raises a ValueError where images are neither of the size that the network learnt, nor made of windows of it.

    Args:
        where: key of the evaluation.
        evaluation: its settings.
        tile: pixels of a side of the tiles that its run learns.
        factor: by which their codec shrinks.
    """
    size, run = evaluation.size, evaluation.run
    if size is None or size == tile:
        return
    if size < tile:
        raise ValueError(
            f"{where}.size {size} is smaller than the tiles that runs.{run} learns ({tile}): leave it out, or train on smaller "
            "ones"
        )
    if evaluation.windows is None:
        raise ValueError(
            f"{where}.size {size} is larger than the tiles that runs.{run} learns ({tile}), and a network makes images of no "
            "other size: add `windows: {overlap: 0.25}`, or train a run on tiles of that size"
        )
    if size % factor:
        raise ValueError(
            f"{where}.size {size} is no multiple of {factor}, by which the codec shrinks: take {size // factor * factor}"
        )
