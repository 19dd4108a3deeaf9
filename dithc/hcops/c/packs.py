"""Weights as products read them, kept for the calls to come.

A product arranges its weights in panels first. With 128 rows that takes half as long as to multiply them (AVX-512), and a
sampling has such products by the thousand, all with the same weights.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from dithc import native
from dithc.log import logger
from dithc.memory import hot_pool
from dithc.pages import available_bytes, ranks_on_node

SHARE = 4  # of the memory that was available, for all ranks of a node
log = logger(__name__)


class Packs:
    """Arranged weights of one process, by where a weight lies, its version and the type of the products.

    Whoever asks sees to it that weights change through torch alone, which counts their versions.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, int, Tensor]] = {}
        self._num_bytes = 0
        self._is_full = False

    def of(self, weight: Tensor, arguments: native.GemmArguments) -> Tensor | None:
        """Return `packed_b` of a product with this weight, whose memory stays referenced; None without packing or memory."""
        key = weight.data_ptr(), arguments.compute
        version = version_of(weight)
        if version is None:
            return None
        found = self._kept.pop(key, None)
        if found is not None:
            kept, of_version, packed = found
            if of_version == version and kept.shape == weight.shape and kept.stride() == weight.stride():
                self._kept[key] = found
                return packed
            self._num_bytes -= packed.nbytes
        bytes_of = torch.zeros(1, dtype=torch.int64)
        context, library = native.context(), native.library()
        assert library is not None, "a product without a library"
        library.hc_gemm_pack_bytes(context, arguments, bytes_of.data_ptr())
        num_bytes = int(bytes_of)
        if num_bytes == 0 or not self._has_room(num_bytes):
            return None
        packed = hot_pool().empty((num_bytes,), torch.uint8)
        library.hc_gemm_pack(context, arguments, packed.data_ptr())
        self._kept[key] = weight.detach(), version, packed
        self._num_bytes += packed.nbytes
        return packed

    def drop(self, addresses: Collection[int]) -> None:
        """Forgets the weights that lie there; programs keep what they read."""
        for key in [key for key in self._kept if key[0] in addresses]:
            found = self._kept.pop(key, None)
            self._num_bytes -= 0 if found is None else found[2].nbytes

    def _has_room(self, num_bytes: int) -> bool:
        available, ranks = available_bytes(), ranks_on_node()
        whole = (available or 0) + ranks * self._num_bytes  # before anybody kept any
        is_full = available is not None and SHARE * ranks * (self._num_bytes + num_bytes) > whole
        if is_full and not self._is_full:
            log.info(
                "%d MiB of weights are kept as products read them; the others are arranged at each call, as %d rank(s) take no "
                "more than 1/%d of the %d MiB of memory that were available for that",
                *(self._num_bytes >> 20, ranks, SHARE, whole >> 20),
            )
        self._is_full = is_full
        return not is_full


def version_of(weight: Tensor) -> int | None:
    """Grows with each change through torch; None where torch does not count them."""
    return None if weight.is_inference() else weight._version
