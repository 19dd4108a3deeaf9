"""What tests of a reader ask of one file: its scene, or why there is none."""

from collections.abc import Callable, Sequence

from dithc.data.scene import Refused, Rejection, Scene


def one_of(
    read_all: Callable[..., Sequence[Scene | Rejection]],
) -> tuple[Callable[..., Scene], Callable[..., Refused]]:
    """What reads the only scene of a folder, and what reads why the only file is refused, from what reads all with settings."""

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
