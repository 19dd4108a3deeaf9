"""Cache of packed weights.

A product first packs its weights into panels. With 128 rows, packing takes half as long as multiplying (AVX-512). A
sampling run has thousands of such products with the same weights.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from dithc import native
from dithc.log import logger
from dithc.memory import hot_pool
from dithc.pages import available_bytes, ranks_on_node

SHARE = 4  # inverse share of available memory, for all ranks of a node
log = logger(__name__)


class Packs:
    """Packed weights by address, version and type of the products. Weights must change through torch only."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], tuple[Tensor, int, Tensor]] = {}
        self._num_bytes = 0
        self._is_full = False

    def of(self, weight: Tensor, arguments: native.GemmArguments) -> Tensor | None:
        """Return `packed_b` of a product with this weight, which is kept, or None without packing or memory."""
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
        context, library = native.context(), native.loaded()
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
        """Remove the weights at these addresses. Programs keep the packed weights they use."""
        for key in [key for key in self._kept if key[0] in addresses]:
            found = self._kept.pop(key, None)
            self._num_bytes -= 0 if found is None else found[2].nbytes

    def _has_room(self, num_bytes: int) -> bool:
        available, ranks = available_bytes(), ranks_on_node()
        whole = (available or 0) + ranks * self._num_bytes  # memory before any rank stored packed weights
        is_full = available is not None and SHARE * ranks * (self._num_bytes + num_bytes) > whole
        if is_full and not self._is_full:
            log.info(
                "storing %d MiB of packed weights; packing the other weights at each call, because %d rank(s) may use at most "
                "1/%d of %d MiB of available memory",
                *(self._num_bytes >> 20, ranks, SHARE, whole >> 20),
            )
        self._is_full = is_full
        return not is_full


def version_of(weight: Tensor) -> int | None:
    """Return the number of changes through torch, or None if torch does not count them."""
    return None if weight.is_inference() else weight._version
