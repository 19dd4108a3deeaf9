"""What the machine can do at most, measured: multiply-adds in registers, one large matrix product, one large copy."""

import time
from functools import cache
from typing import Any, Literal

import torch

from dithc import native
from dithc.bench.timing import spread
from dithc.cftp import Team
from dithc.log import logger
from dithc.memory import Pool
from dithc.native import ceilings

log = logger(__name__)

# Large enough that packing and start-up cost under 5 % of the product, small enough (17 GFLOP) for a fraction of a second.
GEMM_SIZE = 2048
# Well over any cache seen so far but stacked L3; read and written once each.
COPY_BYTES = 512 << 20
FLOP_PER_MAC = 2
# A ceiling is measured over this time: hundreds of times what it takes to start a team of threads.
MULTIPLY_ADD_SECONDS = 0.02
FIRST_ROUNDS = 10_000

Precision = Literal["fp32", "bf16"]


class MultiplyAddCeiling:
    """Independent multiply-adds in registers on every thread, on the widest unit for a type; `work` counts its operations.

    The fp32 unit can compute bf16 products too and is faster on some CPUs; the ceiling is the higher rate.
    """

    def __init__(self, dtype: Precision) -> None:
        candidates: tuple[Precision, ...] = ("fp32", "bf16") if dtype == "bf16" else ("fp32",)
        rates = {unit: _calibrate(unit) for unit in candidates}
        self._operands = max(candidates, key=lambda unit: rates[unit][1])
        self._rounds = rates[self._operands][0]
        self.work = ceilings.multiply_add(self._operands, rounds=self._rounds)
        self.unit = f"multiply-adds of {self._operands}"

    def __call__(self) -> None:
        ceilings.multiply_add(self._operands, rounds=self._rounds)


class GemmCeiling:
    """torch.mm of two square matrices of side GEMM_SIZE.

    In fp32 where PyTorch has no products of bf16 for this CPU but a loop that takes minutes: as `MultiplyAddCeiling` has it, the
    ceiling is the faster unit.
    """

    work: float = FLOP_PER_MAC * GEMM_SIZE**3
    unit = "multiply-adds"

    def __init__(self, dtype: torch.dtype) -> None:
        if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            log.info("the ceiling of bf16 products is one of fp32: PyTorch has none of bf16 for this CPU")
            dtype = torch.float32
        generator = torch.Generator().manual_seed(0)
        self._a = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator).to(dtype)
        self._b = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=generator).to(dtype)
        self._out = torch.empty(GEMM_SIZE, GEMM_SIZE, dtype=dtype)

    def __call__(self) -> None:
        torch.mm(self._a, self._b, out=self._out)


class CopyCeiling:
    """A copy of `size_bytes` with every thread; the traffic counted is the bytes read and the bytes written.

    The copy is the library's, whose stores pass by the caches, or Tensor.copy_ where there is no library.
    """

    unit = "bytes"

    def __init__(self, size_bytes: int = COPY_BYTES) -> None:
        pool = _pool()  # huge pages, which make a copy a tenth faster
        self._source = pool.empty((size_bytes // 4,), torch.float32).fill_(1)
        self._target = pool.empty((size_bytes // 4,), torch.float32).fill_(0)
        self.work: float = self._source.nbytes + self._target.nbytes

    def __call__(self) -> None:
        if native.library() is None:
            self._target.copy_(self._source)
        else:
            ceilings.copy(self._source, self._target)


def team_facts() -> dict[str, Any]:
    """Return the threads of operators and the minimum cost between two steps of one: a barrier."""
    team = Team.of()
    return {
        "description": team.describe(),
        "threads": team.num_threads,
        "clusters": [len(cluster) for cluster in team.clusters],
        "cpus": list(team.cpus),
        "barrier_seconds": spread(team.barrier_times()),
    }


@cache
def _pool() -> Pool:
    """Return the shared pool; it keeps its idle blocks, so one per ceiling would hold them forever."""
    return Pool()


def multiply_add_ceiling(dtype: Precision) -> MultiplyAddCeiling | None:
    """Return the ceiling; None without a library to measure it."""
    return None if native.library() is None else MultiplyAddCeiling(dtype)


def _calibrate(unit: Precision) -> tuple[int, float]:
    """(rounds that take MULTIPLY_ADD_SECONDS, operations a second)."""
    rounds = FIRST_ROUNDS
    while True:
        start = time.perf_counter()
        flop = ceilings.multiply_add(unit, rounds=rounds)
        seconds = time.perf_counter() - start
        if seconds >= MULTIPLY_ADD_SECONDS / 2:
            return max(1, round(rounds * MULTIPLY_ADD_SECONDS / seconds)), flop / seconds
        rounds *= 2
