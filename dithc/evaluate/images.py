"""A set of images, each read by its number, and how the ranks share it.

Legend: n images of all, C bands, H, W image.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.comm import Group
from dithc.evaluate.copies import Rows
from dithc.evaluate.shards import Clipped
from dithc.runs import atomic_write
from dithc.sealed import seal

IDS_FILE = "images.json"
NONE: Rows = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images of one kind, in a fixed order.

    Attributes:
        total: how many.
        set_hash: of all that decides what they are; another one makes features stale.
        stretch: name or hash of the fixed display stretch to uint8; two sets with different ones are not compared.
        read: images by number: uint8 RGB (n, 3, H, W), as a network sees them, and how many of their pixels were clipped.
        ids: what each is: the name of a real tile, or the seed's number of a generated image.
        not_learnt: numbers, which rise, of those that no training saw.
    """

    total: int
    set_hash: str
    stretch: str = ""
    read: Callable[[Rows], tuple[NDArray[np.uint8], Clipped]]
    ids: Sequence[Any] = ()
    not_learnt: Rows = field(default_factory=lambda: NONE)


def write_ids(folder: Path, images: ImageSet) -> None:
    """Writes what each image is, in the order of the features."""
    atomic_write(folder / IDS_FILE, seal({"set_hash": images.set_hash, "images": list(images.ids)}))


def share(rows: Rows, *, batch: int, group: Group) -> Iterator[Rows]:
    """The parts of at most `batch` rows that this rank works on: neighbours, as many for each rank, or one more.

    Parts begin at the same rows however many ranks there are, and those of all ranks, in their order, are all rows.
    """
    count = -(-len(rows) // batch)
    first, last = (count * rank // group.size for rank in (group.rank, group.rank + 1))
    for part in range(first, last):
        yield rows[part * batch : (part + 1) * batch]
