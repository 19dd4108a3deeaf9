"""Measured limits of this machine: multiply-adds in registers, a large matrix product, a large copy."""

import time
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from dithc.bench.timing import spread
from dithc.core.logging import get_logger
from dithc.engine import native
from dithc.engine.cftp import ThreadTeam
from dithc.engine.memory import Pool
from dithc.engine.native import rooflines

log = get_logger(__name__)

# Large enough for packing and start-up to cost less than 5% of the product, small enough (17 GFLOP) for a fraction of a
# second.
GEMM_SIZE = 2048
# Much larger than usual caches, except stacked L3. Read and written once each.
COPY_BYTES = 512 << 20
FLOP_PER_MAC = 2
# Duration of a ceiling measurement: hundreds of times the start of a thread team.
MULTIPLY_ADD_SECONDS = 0.02
FIRST_ROUNDS = 10_000

Precision = Literal["fp32", "bf16"]


class FmaRoofline:
    """Independent multiply-adds in registers on every thread, on the widest unit for a type.

    The fp32 unit also computes bf16 products and is faster on some CPUs, so the ceiling is the higher rate. `work` is
    the number of operations.
    """

    def __init__(self, dtype: Precision) -> None:
        candidates: tuple[Precision, ...] = ("fp32", "bf16") if dtype == "bf16" else ("fp32",)
        rates = {unit: _calibrate(unit) for unit in candidates}
        self._operands = max(candidates, key=lambda unit: rates[unit][1])
        self._rounds = rates[self._operands][0]
        self.work = rooflines.multiply_add(self._operands, rounds=self._rounds)
        self.unit = f"multiply-adds of {self._operands}"

    def __call__(self) -> None:
        rooflines.multiply_add(self._operands, rounds=self._rounds)


class GemmRoofline:
    """torch.mm of two square matrices of side GEMM_SIZE.

    Uses fp32 instead of bf16 if PyTorch has only a slow loop for bf16 on this CPU. As in `FmaRoofline`, the
    ceiling is the faster unit.
    """

    work: float = FLOP_PER_MAC * GEMM_SIZE**3
    unit = "multiply-adds"

    def __init__(self, dtype: Precision, device: str = "cpu") -> None:
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        if dtype == "bf16" and device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            log.info("using fp32 products as the ceiling of bf16: PyTorch has no bf16 products for this CPU")
            kind = torch.float32
        generator = torch.Generator().manual_seed(0)
        self._a, self._b = (torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator).to(device, kind) for _ in range(2))
        self._out = torch.empty_like(self._a)

    def __call__(self) -> None:
        torch.mm(self._a, self._b, out=self._out)
        wait_for(self._out)


class BandwidthRoofline:
    """Copy of `size_bytes` by all threads. `work` is the number of bytes read and written.

    Uses the library's copy with non-temporal stores, or Tensor.copy_ without the library and on other devices.
    """

    unit = "bytes"

    def __init__(self, size_bytes: int = COPY_BYTES, device: str = "cpu") -> None:
        self._source, self._target = (  # huge pages make a copy 10% faster
            pool().empty((size_bytes // 4,), torch.float32).fill_(value).to(device) for value in (1, 0)
        )
        self._is_native = device == "cpu" and native.library() is not None
        self.work: float = self._source.nbytes + self._target.nbytes

    def __call__(self) -> None:
        if self._is_native:
            rooflines.copy(self._source, self._target)
        else:
            self._target.copy_(self._source)
            wait_for(self._target)


def wait_for(tensor: Tensor) -> None:
    """Wait for the operations of the device of a tensor."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def team_properties() -> dict[str, Any]:
    """Return the threads of operators and the minimum cost between two phases of an operator: a barrier."""
    team = ThreadTeam.of()
    return {
        "description": team.describe(),
        "threads": team.num_threads,
        "clusters": [len(cluster) for cluster in team.clusters],
        "cpus": list(team.cpus),
        "barrier_seconds": spread(team.barrier_times()),
    }


@cache
def pool() -> Pool:
    """Return the shared pool of huge pages. It keeps its idle blocks, so that several pools would never free them."""
    return Pool()


def multiply_add_ceiling(dtype: Precision) -> FmaRoofline | None:
    """Return the ceiling, or None without the library that measures it."""
    return None if native.library() is None else FmaRoofline(dtype)


def _calibrate(unit: Precision) -> tuple[int, float]:
    """Return the rounds that last MULTIPLY_ADD_SECONDS, and the operations per second."""
    rounds = FIRST_ROUNDS
    while True:
        start = time.perf_counter()
        flop = rooflines.multiply_add(unit, rounds=rounds)
        seconds = time.perf_counter() - start
        if seconds >= MULTIPLY_ADD_SECONDS / 2:
            return max(1, round(rounds * MULTIPLY_ADD_SECONDS / seconds)), flop / seconds
        rounds *= 2
