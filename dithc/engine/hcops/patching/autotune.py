"""Choice between kernels and torch for a call: measured once per operator, shape and type, and stored in a file.

The file is next to the tuning of the matrix products, and valid for the same `tuning.TuningKey` and version of torch.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from dithc.core.artifacts import atomic_write
from dithc.core.logging import get_logger
from dithc.engine.hcops import tuning

log = get_logger(__name__)

FORMAT = 1
MIN_ROUNDS, MAX_ROUNDS = 3, 25  # alternating rounds, after one warm-up call of each
ROUNDS_SECONDS = 0.1  # time limit of the rounds above the minimum
SUFFIX = "-patch.json"

Variant = Callable[[], Tensor]


class AutotuneResult(NamedTuple):
    """Shortest time of the kernels divided by torch's, and whether the gain exceeds the margin of a tuning."""

    ratio: float
    is_faster: bool


def measure(torch_call: Variant, kernel_call: Variant, inputs: tuple[Tensor, ...]) -> AutotuneResult:
    """Time `torch_call` and `kernel_call` alternately: forward, and backward to the leaves `inputs` if there are any."""
    times: list[tuple[float, float]] = []
    # exclude tensors saved here from outer counting hooks
    with torch.autograd.graph.saved_tensors_hooks(_identity, _identity):
        _seconds(torch_call, inputs), _seconds(kernel_call, inputs)
        while len(times) < MIN_ROUNDS or (len(times) < MAX_ROUNDS and sum(map(sum, times)) < ROUNDS_SECONDS):
            times.append((_seconds(torch_call, inputs), _seconds(kernel_call, inputs)))
    torch_seconds, kernel_seconds = zip(*times, strict=True)
    ratio = min(kernel_seconds) / min(torch_seconds)
    return AutotuneResult(ratio, ratio <= 1 - tuning.MARGIN)


def _seconds(variant: Variant, inputs: tuple[Tensor, ...]) -> float:
    """Time the second of two calls, because the other implementation's threads may still spin during the first."""
    for _ in range(2):
        torch.clear_autocast_cache()  # a training step rounds each weight once, not once for all rounds
        start = perf_counter()
        out = variant()
        if inputs:
            torch.autograd.grad(out, inputs, out.detach())
        seconds = perf_counter() - start
    return seconds


def _identity(tensor: Tensor) -> Tensor:
    return tensor


class AutotuneCache:
    """Measured ratios of this machine by a text that describes the call; read once, written when they grow."""

    def __init__(self) -> None:
        self._ratios: dict[int, dict[str, AutotuneResult]] = {}  # by number of threads

    def get(self, call: str) -> AutotuneResult | None:
        threads = torch.get_num_threads()
        if threads not in self._ratios:
            self._ratios[threads] = _load(_path())
        return self._ratios[threads].get(call)

    def add(self, call: str, ratio: AutotuneResult) -> None:
        """Store a ratio that `get` lacks in the process and, unless DITHC_TUNING_FOLDER disables it, in the file."""
        ratios, path = self._ratios[torch.get_num_threads()], _path()
        ratios[call] = ratio
        if path is not None:
            calls = {**_load(path), **ratios}
            text = json.dumps({"format": FORMAT, "key": _key(), "calls": calls}, indent=1, sort_keys=True)
            try:
                atomic_write(path, text + "\n")
            except OSError as error:
                log.warning(f"cannot store the measurements of patched models: {error}")


def _path() -> Path | None:
    path = tuning.path_of(tuning.this_machine())
    return None if path is None else path.with_name(path.stem + SUFFIX)


def _key() -> dict[str, object]:
    return {**asdict(tuning.this_machine()), "torch": torch.__version__}


def _load(path: Path | None) -> dict[str, AutotuneResult]:
    """Return the ratios in a file. If it is damaged or of another machine or torch, warn and return none."""
    try:
        if path is None or not path.exists():
            return {}
        calls = tuning.read_measurements(path, _key(), FORMAT)["calls"]
        return {call: AutotuneResult(float(ratio), bool(faster)) for call, (ratio, faster) in calls.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s cannot be used (%s: %s); its calls are measured again", path, type(error).__name__, error)
        return {}
