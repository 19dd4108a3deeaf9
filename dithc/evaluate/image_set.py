"""A set of images that are read by number, and its distribution over ranks.

Legend: n images of all, C bands, H, W image.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.memorization import Rows
from dithc.evaluate.shards import Clipped

if TYPE_CHECKING:
    from dithc.engine.comm import Group


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images of one type in a fixed order.

    Attributes:
        total: number of images.
        set_hash: hash of all settings that determine the images; another hash makes features stale.
        rendering_digest: name or hash of the fixed rendering to uint8; sets with different ones are not compared.
        read: function from numbers to uint8 RGB images (n, 3, H, W) for a network, and the counts of clipped pixels.
        ids: identity of each image: the name of a real tile, or the seed number of a generated image.
    """

    total: int
    set_hash: str
    rendering_digest: str
    read: Callable[[Rows], tuple[NDArray[np.uint8], Clipped]]
    ids: Sequence[Any] = ()


def share(rows: Rows, *, batch: int, group: "Group") -> Iterator[Rows]:
    """Yield the parts of at most `batch` rows of this rank: consecutive parts, balanced to within one part.

    Parts begin at the same rows for any number of ranks. The parts of all ranks, in order of rank, are all rows.
    """
    count = -(-len(rows) // batch)
    first, last = (count * rank // group.size for rank in (group.rank, group.rank + 1))
    for part in range(first, last):
        yield rows[part * batch : (part + 1) * batch]
