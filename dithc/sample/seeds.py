"""What makes image i itself: its label and its noise, from (seed, i) alone; of a scene, noise from (seed, i, place).

Legend: N images, Z latent channels, h, w latent.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

WORD = (1 << 64) - 1
BLOCK = 32  # latent pixels of a side: what one generator draws


def _words(seed: int, index: int) -> tuple[int, int]:
    """Two independent 64-bit words for an image; numpy promises that SeedSequence never changes."""
    first, second = np.random.SeedSequence([seed & WORD, index]).generate_state(2, np.uint64)
    return int(first), int(second)


def generator_of(seed: int, index: int) -> torch.Generator:
    """The generator of all noise of image `index`."""
    return torch.Generator().manual_seed(_words(seed, index)[0])


def label_of(seed: int, index: int, classes: npt.NDArray[np.int64]) -> int:
    """The label of image `index`: one of `classes`, each as likely."""
    return int(classes[_words(seed, index)[1] % len(classes)])


def noise_by_place(seed: int, indices: Sequence[int], shape: tuple[int, int, int]) -> Callable[[int], Tensor]:
    """Return noise of scenes as a function of the draw; (seed, image index, draw, place) decides each value.

    Each block of `BLOCK` x `BLOCK` places of (Z, h, w) has its own generator. A scene of another size has the same noise at
    common places, and draws are independent of each other.
    """
    channels, height, width = shape

    def block(index: int, step: int, row: int, column: int) -> Tensor:
        sequence = np.random.SeedSequence([seed & WORD, index], spawn_key=(step, row, column))
        generator = torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
        return torch.randn(channels, BLOCK, BLOCK, generator=generator)

    def draw(step: int) -> Tensor:
        noise = torch.empty(len(indices), *shape)
        for number, index in enumerate(indices):
            for top in range(0, height, BLOCK):
                for left in range(0, width, BLOCK):
                    target = noise[number, :, top : top + BLOCK, left : left + BLOCK]
                    drawn = block(index, step, top // BLOCK, left // BLOCK)
                    target.copy_(drawn[:, : target.shape[1], : target.shape[2]])
        return noise  # (N, Z, h, w)

    return draw
