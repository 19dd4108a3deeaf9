"""Readers of all scenes of a folder, of the only scene, and of the only rejection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dithc.data.readers import read_scenes
from dithc.data.scene import Rejection, Scene, SceneRejectedError


def reader(
    model: type[BaseModel], **declared: Any
) -> tuple[Callable[..., list[Scene | Rejection]], Callable[..., Scene], Callable[..., SceneRejectedError]]:
    """Return readers of a kind of source, which accept a folder and settings besides those declared."""

    def read_all(folder: Path, **settings: Any) -> list[Scene | Rejection]:
        source: Any = model.model_validate({"path": str(folder), **declared, **settings})
        return list(read_scenes(source, folder))

    def read_one(folder: Path, **settings: Any) -> Scene:
        (scene,) = read_all(folder, **settings)
        assert isinstance(scene, Scene), scene.refused
        return scene

    def refusal(folder: Path, **settings: Any) -> SceneRejectedError:
        (rejection,) = read_all(folder, **settings)
        assert isinstance(rejection, Rejection)
        refused = rejection.refused
        assert all((refused.what, refused.got, refused.expected, refused.fix))
        return refused

    return read_all, read_one, refusal
