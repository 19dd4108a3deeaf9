"""Measured computing times on the connected ranks: seconds per block, with all ranks active and with few.

T tokens of an image, t of a strip, D width, L blocks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dithc.comm import Group
from dithc.hcops import across, part
from dithc.model import DiT
from dithc.parallel.attention import Apart
from dithc.parallel.cache import Blocks
from dithc.parallel.degrees import Work
from dithc.parallel.denoise import Denoiser
from dithc.parallel.stages import rotated_from

MOST_TOKENS, PART, BLOCKS = 1024, 4, 2  # tokens of the long strip; divisor for the short strip; number of timed blocks
ROUNDS, WINDOW_SECONDS, LONG_SECONDS = 3, 0.05, 0.5

# Timed work: a context manager that yields the action to repeat.
Timed = Callable[[], AbstractContextManager[Callable[[], object]]]


def computing(model: DiT, work: Work, *, bf16: bool) -> dict[str, float]:
    """Return seconds of blocks and calls by name.

    `long` and `short` are the seconds of a block with a long and a short strip of one image. `leaving` is the extra
    time of a block in two calls, and `call` the time of a network call outside of blocks.
    """
    long, short = strips(work)
    blocks = model.chain()[:BLOCKS]
    timed = {"long": _block(model, blocks, work, long), "short": _block(model, blocks, work, short)}
    if work.in_memory and short < long:
        timed["left"] = _block(model, blocks, work, short, in_sequence=False)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        found = dict(zip(timed, _typical(list(timed.values())), strict=True))
    found = {name: seconds / min(BLOCKS, work.depth) for name, seconds in found.items()}
    found["leaving"] = max(0.0, found.pop("left", 0.0) - found["short"])
    return found | {"call": _ends(model, work, found["long"], bf16=bf16)}


def crowds(model: DiT, work: Work, group: Group, *, place: int, most: int, bf16: bool) -> dict[int, float]:
    """Return seconds of a block by the active first ranks per node, of at most `most`; `place` is this rank's index."""
    found = {}
    block = _block(model, model.chain()[:BLOCKS], work, strips(work)[1])
    for ranks in sorted({min(1 << power, most) for power in range(most.bit_length() + 1)}):
        group.barrier()
        if place < ranks:
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                (found[ranks],) = _typical([block])
    return found


def strips(work: Work) -> tuple[int, int]:
    """Return the tokens of a long and a short strip."""
    long = min(work.tokens, MOST_TOKENS)
    return long, max(1, long // PART)


def _block(model: DiT, blocks: Blocks, work: Work, tokens: int, *, in_sequence: bool = True) -> Timed:
    @contextmanager
    def entered() -> Iterator[Callable[[], object]]:
        with part.part_of(work.tokens, over), rotated_from(model, slice(0, tokens)):
            yield partial(blocks, strip, c)

    width = model.config.hidden_size
    strip, c = torch.zeros(1, tokens, width), torch.zeros(1, width)
    over = _AllKeys(work.tokens, in_sequence=in_sequence) if work.in_memory else None
    return entered


def _ends(model: DiT, work: Work, block: float, *, bf16: bool) -> float:
    """Return seconds of a call outside of blocks; 0 if a call takes too long to measure."""
    if work.tokens > MOST_TOKENS or work.depth * block > LONG_SECONDS:
        return 0.0
    config = model.config
    x, y = torch.zeros(1, config.in_channels, *config.size), torch.zeros(1, dtype=torch.long)
    denoiser = Denoiser(model, bf16=bf16)
    (whole,) = _typical([lambda: nullcontext(lambda: denoiser(x, torch.zeros(1), y))])
    return max(0.0, whole - work.depth * block)


def _typical(timed: Sequence[Timed]) -> list[float]:
    """Return the median seconds of rounds that repeat short work; long work is timed once.

    The minimum would be misleading, because on shared cores it reflects a lucky round.
    """
    found: list[list[float]] = [[] for _ in timed]
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        for one, seconds in zip(timed, found, strict=True):
            with one() as action:
                seconds.append(_window(action))
        if time.perf_counter() - begun > LONG_SECONDS * len(timed):
            break
    return [median(seconds) for seconds in found]


def _window(action: Callable[[], object]) -> float:
    """Return mean seconds of an action within a window, after a warm-up; a long action runs once."""
    begun = time.perf_counter()
    action()
    if (first := time.perf_counter() - begun) > LONG_SECONDS:
        return first
    count, begun = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - begun < WINDOW_SECONDS:
        action()
        count += 1
    return (time.perf_counter() - begun) / count


class _AllKeys(Apart):
    """Attention of a strip over keys and values of a complete image, as in shared memory, on one rank."""

    def __init__(self, tokens: int, *, in_sequence: bool) -> None:
        self._tokens, self.in_sequence = tokens, in_sequence
        self._memory = torch.empty(0)
        self._kept: Any = None

    def linears(self, x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Iterator[Tensor]:
        """See `hcops.part.Across`; computes all columns."""
        self._outputs = torch.empty(len(layers), len(x), len(layers[0][0]), dtype=dtype)
        across.linears_in(self._outputs, x, layers, columns=slice(None), meet=lambda calls: None)
        return iter(self._outputs)

    def attention(self, qkv: Tensor, num_heads: int) -> Tensor:
        """See `hcops.part.Across`."""
        n, _, width = qkv.shape
        if self._memory.dtype != qkv.dtype or not len(self._memory):
            self._memory = torch.zeros(n, self._tokens, 2 * width // 3, dtype=qkv.dtype)
        mixed, *self._kept = across.attention_in(self._memory, qkv, num_heads, first=0, meet=lambda calls: None)
        return mixed
