"""Label and noise of image i from (seed, i) only; noise of a scene from (seed, i, place).

Legend: N images, Z latent channels, h, w latent.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MASK_64 = (1 << 64) - 1
BLOCK = 32  # side in latent pixels of the area of one generator


def _words(seed: int, index: int) -> tuple[int, int]:
    """Return two independent 64-bit words for an image; numpy guarantees that SeedSequence never changes."""
    first, second = np.random.SeedSequence([seed & MASK_64, index]).generate_state(2, np.uint64)
    return int(first), int(second)


def generator_of(seed: int, index: int) -> torch.Generator:
    """Return the generator of all noise of image `index`."""
    return torch.Generator().manual_seed(_words(seed, index)[0])


def label_of(seed: int, index: int, classes: npt.NDArray[np.int64]) -> int:
    """Draw the label of image `index` uniformly from `classes`."""
    return int(classes[_words(seed, index)[1] % len(classes)])


def noise_by_place(seed: int, indices: Sequence[int], shape: tuple[int, int, int]) -> Callable[[int], Tensor]:
    """Return noise of scenes as a function of the draw; (seed, image index, draw, place) determines each value.

    Each block of `BLOCK` x `BLOCK` places of (Z, h, w) has its own generator. A scene of another size has the same
    noise at common places, and draws are independent of each other.
    """
    channels, height, width = shape

    def block(index: int, step: int, row: int, column: int) -> Tensor:
        sequence = np.random.SeedSequence([seed & MASK_64, index], spawn_key=(step, row, column))
        generator = torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
        return torch.randn(channels, BLOCK, BLOCK, generator=generator)

    def draw(step: int) -> Tensor:
        noise = torch.empty(len(indices), *shape)
        for number, index in enumerate(indices):
            for top in range(0, height, BLOCK):
                for left in range(0, width, BLOCK):
                    target = noise[number, :, top : top + BLOCK, left : left + BLOCK]
                    noise_block = block(index, step, top // BLOCK, left // BLOCK)
                    target.copy_(noise_block[:, : target.shape[1], : target.shape[2]])
        return noise  # (N, Z, h, w)

    return draw
