"""Helpers of reader tests that return the scene or the rejection of a single file."""

from collections.abc import Callable, Sequence

from dithc.data.scene import Refused, Rejection, Scene


def one_of(
    read_all: Callable[..., Sequence[Scene | Rejection]],
) -> tuple[Callable[..., Scene], Callable[..., Refused]]:
    """Return readers of the only scene and of the only rejection, from a reader of all scenes with settings."""

    def read_one(*where: object, **settings: object) -> Scene:
        (scene,) = read_all(*where, **settings)
        assert isinstance(scene, Scene), scene.refused
        return scene

    def refusal(*where: object, **settings: object) -> Refused:
        (rejection,) = read_all(*where, **settings)
        assert isinstance(rejection, Rejection)
        refused = rejection.refused
        assert refused.what
        assert refused.got
        assert refused.expected
        assert refused.fix
        return refused

    return read_one, refusal
