"""Choice of the instruction set: the fastest by measurement, the same in all ranks and in a resumed training run.

CPUID does not give the rates of units that several cores or virtual machines share. fp32 products from bf16 parts on
AMX are faster than the vector unit if the AMX unit is quiet, and slower if it is shared. The first process on a CPU model
times products of each candidate and stores the rates next to the tuning.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dithc.core.artifacts import atomic_write
from dithc.core.caches import tuning_folder
from dithc.core.logging import get_logger
from dithc.core.units import GIGA
from dithc.engine.hardware import discover_machine
from dithc.engine.native.loading import ABI_VERSION, ISA_VARIABLE, isa_name, kernels_of, library, loaded, supported_isas
from dithc.engine.native.signatures import GemmArguments
from dithc.engine.native.thread_layout import new_context, planned_layout

log = get_logger(__name__)

CANDIDATES = ("avx512", "avx512bf16", "amx", "amxfp32", "sve", "svebf16", "sme")
"""Sets whose order of speed depends on the machine. Lower sets of a family are slower on every CPU with one of these."""
FORMAT = 1
ROWS_PER_THREAD, MAX_ROWS, WIDTH, FEATURES = 2048, 8192, 384, 1536  # an MLP layer of DiT-S
ROUNDS, CHECK_ROUNDS = 5, 3
MOVED = 0.3
"""Relative change of a rate of the chosen kernels after which all candidates are measured again."""
GAIN = 0.1
"""Smallest gain for which a later measurement replaces the chosen set, because another set rounds differently."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Rates = Mapping[str, Mapping[str, float]]
"""GFLOP/s by type of the product and instruction set of the kernel."""


class IsaChoice(NamedTuple):
    """Instruction set of this process with its reason, and the measured rates if they decided."""

    isa: str
    reason: str
    rates: Rates = {}

    def describe(self) -> str:
        """Return the reason and the rates."""
        texts = [self.reason]
        for dtype, by_isa in self.rates.items():
            chosen = _serving(self.isa, dtype)
            others = ", ".join(f"{isa} {rate:,.0f}" for isa, rate in by_isa.items() if isa != chosen)
            texts.append(f"{dtype} {by_isa[chosen]:,.0f} GFLOP/s by {chosen}" + (f" ({others})" if others else ""))
        return "; ".join(texts)


def instruction_set() -> str:
    """Return the instruction set of the kernels; UserError if HCOPS_ISA names a set that this CPU lacks."""
    return isa_choice().isa


@cache
def isa_choice() -> IsaChoice:
    """Return HCOPS_ISA, else the pinned set, else the stored choice of this CPU model, else that of a new measurement."""
    if library() is None:
        return IsaChoice("none", "the library is missing")
    name = os.environ.get(ISA_VARIABLE, "")
    best = isa_name(name)
    if name:
        return IsaChoice(best, f"set by {ISA_VARIABLE}")
    if _pinned:
        return _pinned[-1]
    if len(_candidates()) < 2:
        return IsaChoice(best, "the fastest of this CPU")
    path = _path()
    if path is None:
        return IsaChoice(best, "the fastest of this CPU model, not measured because no tuning is stored")
    with _lock(path):
        return _described(*(_load(path) or _choose(path)))


def kernels() -> list[tuple[str, str]]:
    """Return the kernels of this process, each with its own instruction set; empty without a library."""
    return kernels_of(instruction_set())


def pin(isa: str, reason: str, *, of_all_ranks: Collection[str] | None = None) -> None:
    """Use `isa` for all later contexts of this process, unless HCOPS_ISA is set or a CPU of the ranks lacks it.

    Args:
        isa: name of the set.
        reason: text for the log.
        of_all_ranks: sets that all ranks support, which also restrict later calls; None for an unchanged restriction.
    """
    current = isa_choice()
    if of_all_ranks is not None:
        _common[:] = of_all_ranks
    if current.isa == isa or isa not in (_common or supported_isas()) or os.environ.get(ISA_VARIABLE):
        return
    log.info("kernels: instruction set %s instead of %s: %s", isa, current.isa, reason)
    _pinned.append(IsaChoice(isa, reason))
    isa_choice.cache_clear()


_pinned: list[IsaChoice] = []
_common: list[str] = []


@cache
def check_rates() -> None:
    """Compare the rates of this process with the stored rates, once and before its first operator.

    All candidates are measured for a new number of threads, or if a rate of the chosen kernels has moved by more than
    30%. A gain of more than 10% then changes the choice.
    """
    choice, path = isa_choice(), _path()
    if choice.isa == "none" or choice in _pinned or os.environ.get(ISA_VARIABLE) or path is None or not path.exists():
        return
    with _lock(path):
        stored = _load(path)
        known = {} if stored is None else stored[1].get(str(torch.get_num_threads()), {})
        if known and known != _measured:
            rates = measure({dtype: [_serving(choice.isa, dtype)] for dtype in DTYPES}, rounds=CHECK_ROUNDS)
            moves = [rates[dtype][isa] / known[dtype][isa] for dtype in rates for isa in rates[dtype]]
            if any(abs(move - 1) > MOVED for move in moves):
                log.info("kernels: %s of the stored rates: measuring again", " and ".join(f"{x:.0%}" for x in moves))
                known = {}
        if not known:
            _choose(path, current=choice.isa)
            isa_choice.cache_clear()


def measure(kernels_of: Mapping[str, Sequence[str]], *, rounds: int = ROUNDS) -> Rates:
    """Return the rate of the kernels of each type and instruction set, by the shortest of alternating rounds.

    The products are the forward pass and the gradient of the weight of a linear layer, on all threads of this process.
    """
    threads, machine = torch.get_num_threads(), discover_machine()
    rows, layout = min(ROWS_PER_THREAD * threads, MAX_ROWS), planned_layout(machine, threads)
    seconds: dict[tuple[str, str], list[float]] = {
        (dtype, isa): [] for dtype in kernels_of for isa in kernels_of[dtype]
    }
    contexts = {isa: new_context(machine, layout, isa=isa) for isa in sorted({isa for _, isa in seconds})}
    products = {dtype: _products(rows, DTYPES[dtype]) for dtype in kernels_of}
    try:
        for _ in range(1 + rounds):  # the first round warms up
            for (dtype, isa), times in seconds.items():
                start = time.perf_counter()
                for product, _ in products[dtype]:
                    loaded().hc_gemm(contexts[isa], ctypes.byref(product))
                times.append(time.perf_counter() - start)
    finally:
        for context in contexts.values():
            loaded().hc_context_destroy(context)
    gflop = 2 * 2 * rows * WIDTH * FEATURES / GIGA
    return {dtype: {isa: gflop / min(seconds[dtype, isa][1:]) for isa in kernels_of[dtype]} for dtype in kernels_of}


def fastest(rates: Rates, isas: Sequence[str], *, current: str | None = None) -> str:
    """Return the set with the smallest time, summed over types in units of the fastest kernel of each type.

    The first of equal sets wins. `current` stays unless the gain exceeds `GAIN`.
    """

    def time_of(isa: str) -> float:
        return sum(max(by_isa.values()) / by_isa[_serving(isa, dtype)] for dtype, by_isa in rates.items())

    best = min(isas, key=time_of)
    if current is not None and current in isas and time_of(current) <= (1 + GAIN) * time_of(best):
        return current
    return best


def _candidates() -> list[str]:
    return [isa for isa in CANDIDATES if isa in supported_isas()]


def _serving(isa: str, dtype: str) -> str:
    """Return the instruction set of the kernel of large products on a machine of level `isa`."""
    table = dict(kernels_of(isa))
    return table.get(f"gemm_{KERNEL_NAMES[dtype]}_split") or table[f"gemm_{KERNEL_NAMES[dtype]}"]


KERNEL_NAMES = {"fp32": "f32", "bf16": "bf16"}


def _products(rows: int, dtype: torch.dtype) -> list[tuple[GemmArguments, tuple[Tensor, ...]]]:
    """Return the arguments of both products, each with the tensors that it uses."""
    code, random = int(dtype is torch.bfloat16), torch.Generator().manual_seed(0)  # 0 is fp32, 1 is bf16: hc_dtype
    x, weight, dy = (
        torch.randn(shape, generator=random).to(dtype) for shape in ((rows, WIDTH), (FEATURES, WIDTH), (rows, FEATURES))
    )
    y, gradient = torch.empty_like(dy), torch.empty(FEATURES, WIDTH)
    # Strides of A (m, k) and B (k, n): y = x W^T, then dW = dy^T x in fp32.
    forward = GemmArguments(
        *(rows, FEATURES, WIDTH, x.data_ptr(), WIDTH, 1, code, weight.data_ptr(), 1, WIDTH, code),
        *(y.data_ptr(), FEATURES, 1, code, 0, code),
    )
    backward = GemmArguments(
        *(FEATURES, WIDTH, rows, dy.data_ptr(), 1, FEATURES, code, x.data_ptr(), WIDTH, 1, code),
        *(gradient.data_ptr(), WIDTH, 1, 0, 0, code),
    )
    return [(forward, (x, weight, y)), (backward, (dy, x, gradient))]


def _choose(path: Path, *, current: str | None = None) -> tuple[str, dict[str, Rates]]:
    """Measure all candidates; store and return the chosen set, and all rates by number of threads."""
    isas = _candidates()
    rates = measure({dtype: sorted({_serving(isa, dtype) for isa in isas}) for dtype in DTYPES})
    isa = fastest(rates, isas, current=current)
    if current not in (None, isa):
        log.warning(
            "kernels: instruction set %s is now faster than %s, and rounds differently; set %s=%s to keep it",
            *(isa, current, ISA_VARIABLE, current),
        )
    stored = _load(path)
    by_threads = ({} if stored is None else stored[1]) | {str(torch.get_num_threads()): rates}
    _measured.clear()
    _measured.update(rates)
    content = {"format": FORMAT, "key": _key(), "isa": isa, "rates": by_threads}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        log.warning("kernels: the measured rates are not stored: %s", error)
    return isa, by_threads


_measured: dict[str, Mapping[str, float]] = {}  # by this process


def _load(path: Path) -> tuple[str, dict[str, Rates]] | None:
    """Return the stored set, and all rates by number of threads; None without a valid file."""
    try:
        content = json.loads(path.read_text())
        is_usable = content["key"] == _key() and content["isa"] in _candidates() and content["rates"]
        if content["format"] != FORMAT or not is_usable:
            return None
        expected = {dtype: sorted({_serving(isa, dtype) for isa in _candidates()}) for dtype in DTYPES}
        return content["isa"], {
            str(int(threads)): {dtype: {isa: float(rates[dtype][isa]) for isa in expected[dtype]} for dtype in DTYPES}
            for threads, rates in content["rates"].items()
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("kernels: %s is unusable (%s: %s): measuring again", path, type(error).__name__, error)
        return None


def _described(isa: str, by_threads: Mapping[str, Rates]) -> IsaChoice:
    """Return a choice with the rates of this number of threads, else of the largest measured number."""
    threads = str(torch.get_num_threads())
    rates = by_threads[threads if threads in by_threads else max(by_threads, key=int)]
    choice = IsaChoice(isa, "the fastest by measurement", rates)
    log.info("kernels: instruction set %s, %s", isa, choice.describe())
    return choice


def _key() -> dict[str, Any]:
    return {"cpu": discover_machine().model_name, "isas": supported_isas(), "abi": ABI_VERSION}


def _path() -> Path | None:
    """Return the file of the choice. All hosts with this CPU model share it, for equal bits on any number of ranks."""
    folder, key = tuning_folder(), _key()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    cpu = re.sub(r"[^a-z0-9]+", "-", key["cpu"].lower()).strip("-")[:40]
    return folder and folder / "instruction-sets" / f"{cpu}-{digest}.json"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time measure. Without locks in this file system, processes measure at the same time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".lock").open("w")
    except OSError as error:
        log.info("kernels: measuring without a lock: %s", error)
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.info("kernels: measuring without a lock: %s", error)
        yield
