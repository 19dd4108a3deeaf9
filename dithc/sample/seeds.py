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
DECODER_DRAW = 1 << 20  # number of the draw for the decoder, which no sampler reaches


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


def noise_by_place(
    seed: int, indices: Sequence[int], shape: tuple[int, int, int], *, origin: tuple[int, int] = (0, 0)
) -> Callable[[int], Tensor]:
    """Return noise of scenes as a function of the draw; (seed, image index, draw, place) determines each value.

    Each block of `BLOCK` x `BLOCK` places of (Z, h, w) has its own generator. A scene of another size, or a part of it that
    starts at `origin`, has the same noise at common places, and draws are independent of each other.
    """
    (channels, height, width), (top, left) = shape, origin
    ends = top + height, left + width

    def block(index: int, step: int, row: int, column: int) -> Tensor:
        sequence = np.random.SeedSequence([seed & MASK_64, index], spawn_key=(step, row, column))
        generator = torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
        return torch.randn(channels, BLOCK, BLOCK, generator=generator)

    def draw(step: int) -> Tensor:
        noise = torch.empty(len(indices), *shape)
        for number, index in enumerate(indices):
            for row in range(top // BLOCK, -(-ends[0] // BLOCK)):
                for column in range(left // BLOCK, -(-ends[1] // BLOCK)):
                    first, start = max(top, row * BLOCK), max(left, column * BLOCK)
                    end, stop = min(ends[0], (row + 1) * BLOCK), min(ends[1], (column + 1) * BLOCK)
                    values = block(index, step, row, column)
                    values = values[
                        :, first - row * BLOCK : end - row * BLOCK, start - column * BLOCK : stop - column * BLOCK
                    ]
                    noise[number, :, first - top : end - top, start - left : stop - left] = values
        return noise  # (N, Z, h, w)

    return draw
