"""Whether our kernels or torch serve a call: measured once for each operator, shape and type, in turns, and kept in a file.

The file stands beside the tuning of the matrix products and belongs to the same machine, threads, instruction set and versions
(`tuning.Key`), and to this version of torch, which is the other contender.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from dithc.hcops import tuning
from dithc.log import logger
from dithc.runs import atomic_write

log = logger(__name__)

FORMAT = 1
LEAST_ROUNDS, MOST_ROUNDS = 3, 25  # of both, in turns, after one of each that brings in memory and code
ROUNDS_SECONDS = 0.1  # for those between
ENDING = "-patch.json"

Contender = Callable[[], Tensor]


class Ratio(NamedTuple):
    """What was measured: our shortest time over torch's, and whether that gains the margin of a tuning.

    Shortest, because what other processes do to a time only makes it longer, and some calls take microseconds.
    """

    ratio: float
    is_faster: bool


def measure(theirs: Contender, ours: Contender, inputs: tuple[Tensor, ...]) -> Ratio:
    """Time `theirs` (torch) and `ours` in turns: forward, and backward to the leaves `inputs` if there are any."""
    times: list[tuple[float, float]] = []
    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):  # no one else's count what is saved here
        _seconds(theirs, inputs), _seconds(ours, inputs)
        while len(times) < LEAST_ROUNDS or (len(times) < MOST_ROUNDS and sum(map(sum, times)) < ROUNDS_SECONDS):
            times.append((_seconds(theirs, inputs), _seconds(ours, inputs)))
    of_theirs, of_ours = zip(*times, strict=True)
    ratio = min(of_ours) / min(of_theirs)
    return Ratio(ratio, ratio <= 1 - tuning.MARGIN)


def _seconds(contender: Contender, inputs: tuple[Tensor, ...]) -> float:
    """Of the second of two calls: in the first the threads of the other contender may still turn, waiting for more."""
    for _ in range(2):
        torch.clear_autocast_cache()  # a step rounds each weight once, not once for all rounds
        start = perf_counter()
        out = contender()
        if inputs:
            torch.autograd.grad(out, inputs, out.detach())
        seconds = perf_counter() - start
    return seconds


def _itself(tensor: Tensor) -> Tensor:
    return tensor


class Kept:
    """The ratios that this machine has measured, by the words for a call; read once, written as they grow."""

    def __init__(self) -> None:
        self._ratios: dict[int, dict[str, Ratio]] = {}

    def get(self, words: str) -> Ratio | None:
        """The ratio of a call, if it was measured."""
        return self._of_threads().get(words)

    def add(self, words: str, ratio: Ratio) -> None:
        """Keeps a ratio, in the process and, unless DITHC_TUNING turns that off, in the file."""
        ratios = self._of_threads()
        ratios[words] = ratio
        path = _path()
        if path is not None:
            kept = {**_load(path), **ratios}
            text = json.dumps({"format": FORMAT, "key": _key(), "calls": kept}, indent=1, sort_keys=True)
            try:
                atomic_write(path, text + "\n")
            except OSError as error:
                log.warning(f"what was measured of patched models is not kept: {error}")

    def forget(self) -> None:
        """Has the file read again."""
        self._ratios.clear()

    def _of_threads(self) -> dict[str, Ratio]:
        threads = torch.get_num_threads()
        if threads not in self._ratios:
            path = _path()
            self._ratios[threads] = {} if path is None else _load(path)
        return self._ratios[threads]


def _path() -> Path | None:
    found = tuning.path_of(_machine(torch.get_num_threads()))
    return None if found is None else found.with_name(found.stem + ENDING)


@cache
def _machine(threads: int) -> tuning.Key:
    found = tuning.this_machine()
    assert found.threads == threads
    return found


def _key() -> dict[str, object]:
    key = {**asdict(_machine(torch.get_num_threads())), "torch": torch.__version__}
    plain: dict[str, object] = json.loads(json.dumps(key))
    return plain


def _load(path: Path) -> dict[str, Ratio]:
    """What a file holds; one that is damaged or of another machine or torch is a warning, and measured again."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT or content["key"] != _key():
            raise ValueError("it belongs to another machine, torch or version")
        return {words: Ratio(float(ratio), bool(faster)) for words, (ratio, faster) in content["calls"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s cannot be used (%s: %s); its calls are measured again", path, type(error).__name__, error)
        return {}
