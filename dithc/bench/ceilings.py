"""What the machine can do at most, measured: one large matrix product, and one large copy."""

import torch

# Large enough that packing and start-up cost under 5 % of the product, small enough (17 GFLOP) for a fraction of a second.
GEMM_SIZE = 2048
# Well over any cache seen so far but stacked L3; read and written once each.
COPY_BYTES = 512 << 20
FLOP_PER_MAC = 2


class GemmCeiling:
    """torch.mm of two square matrices of side GEMM_SIZE."""

    flop = FLOP_PER_MAC * GEMM_SIZE**3

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self._a = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator).to(dtype)
        self._b = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator).to(dtype)
        self._out = torch.empty(GEMM_SIZE, GEMM_SIZE, dtype=dtype)

    def __call__(self) -> None:
        torch.mm(self._a, self._b, out=self._out)


class CopyCeiling:
    """Tensor.copy_ of COPY_BYTES; the traffic counted is the bytes read and the bytes written."""

    traffic_bytes = 2 * COPY_BYTES

    def __init__(self) -> None:
        self._source = torch.ones(COPY_BYTES // 4)
        self._target = torch.zeros(COPY_BYTES // 4)

    def __call__(self) -> None:
        self._target.copy_(self._source)
