"""What makes image i itself: its label and its noise, from (seed, i) alone."""

import numpy as np
import numpy.typing as npt
import torch

WORD = (1 << 64) - 1


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
