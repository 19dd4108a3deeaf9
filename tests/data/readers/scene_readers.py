"""Generated pixels, and readers of all scenes of a folder, of the only scene, and of the only rejection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from dithc.config import datasets
from dithc.data.readers import SceneSource, read_scenes
from dithc.data.scene import Rejection, Scene, SceneRejectedError


def land(seed: int = 0, *, height: int = 16, width: int = 16) -> np.ndarray:
    """Draw digital numbers (4, H, W) of a dark green landscape without offset."""
    means = np.array([400, 600, 350, 2500])[:, None, None]
    return (means * np.random.default_rng(seed).uniform(0.5, 1.5, (4, height, width))).astype(np.uint16)


def open_images(folder: Path, **settings: Any) -> SceneSource:
    return read_scenes(datasets.ImageFolderSource(kind="image-folder", path=str(folder), **settings), folder)


def reader(
    model: type[BaseModel], **declared: Any
) -> tuple[Callable[..., list[Scene | Rejection]], Callable[..., Scene], Callable[..., SceneRejectedError]]:
    """Return readers of a kind of source, which accept a folder and settings besides those declared."""

    def read_all(folder: Path, **settings: Any) -> list[Scene | Rejection]:
        source: Any = model.model_validate({"path": str(folder), **declared, **settings})
        return list(read_scenes(source, folder))

    def read_one(folder: Path, **settings: Any) -> Scene:
        (scene,) = read_all(folder, **settings)
        assert isinstance(scene, Scene), scene.error
        return scene

    def read_error(folder: Path, **settings: Any) -> SceneRejectedError:
        (rejection,) = read_all(folder, **settings)
        assert isinstance(rejection, Rejection)
        error = rejection.error
        assert all((error.problem, error.got, error.expected, error.fix))
        return error

    return read_all, read_one, read_error
