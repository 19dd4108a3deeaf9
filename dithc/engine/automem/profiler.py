"""The warm-up: records forward and backward passes into a trace.

Bytes come from the first pass, before gradients exist; seconds come from a later pass, without first-touch costs. Weights are
used in place, and allocations beyond fast memory overflow into the tiers below.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from dithc.engine.automem.allocation_mode import AllocationMode
from dithc.engine.automem.saved_tensors import SavedStorage, SavedTensorRegistry, has_other_hooks, is_plain, tensors_in
from dithc.engine.automem.trace import SavedTensor, StateItem, Trace, Unit, Weight
from dithc.engine.memory import Tiers


@dataclass
class _Row:
    name: str
    parameters: Sequence[tuple[str, nn.Parameter]]
    forward_start: int
    forward_peak: int
    forward_seconds: float = 0.0
    backward_start: int | None = None
    backward_peak: int = 0
    backward_seconds: float = 0.0
    saved: list[tuple[int, bool]] = field(default_factory=list)  # bytes, and whether another unit created it
    readers: list[set[int]] = field(default_factory=list)  # units that read each saved tensor


class MemoryMeter:
    """Counter of the bytes in use by operators: in the tiers, and saved tensors in torch's memory."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers, self._outside_tiers = tiers, WeakSet[SavedStorage]()
        self._start_bytes = [tier.counters().used_bytes for tier in tiers]

    def add(self, record: SavedStorage) -> None:
        if record.original is not None and self._tiers.tier_of(record.original) is None:
            self._outside_tiers.add(record)

    def used(self) -> int:
        """Return bytes in use in all tiers; lower tiers count from the start only."""
        return self._sum([tier.counters().used_bytes for tier in self._tiers])

    def start_peaks(self) -> None:
        for tier in self._tiers:
            tier.pool.start_peak()

    def peak(self) -> int:
        """Return an upper bound of the peak use since `start_peaks`, because tiers peak at different times."""
        return self._sum([tier.counters().peak_bytes for tier in self._tiers])

    def _sum(self, used_bytes: list[int]) -> int:
        below = sum(used_bytes[1:]) - sum(self._start_bytes[1:])
        return max(0, used_bytes[0] + below) + sum(record.num_bytes for record in self._outside_tiers)


class ProfiledCall:
    """A recorded call of the model; `is_complete` once its backward pass has ended."""

    def __init__(
        self,
        *,
        tiers: Tiers,
        parameters_of: Callable[[str], Sequence[tuple[str, nn.Parameter]]],
        find_weight: Callable[[int], nn.Parameter | None],
        is_tracked: Callable[[Tensor], bool],
        allocation: AllocationMode,
    ) -> None:
        """Start recording; `find_weight` maps an address to its parameter, `is_tracked` selects movable tensors."""
        self.is_complete = False
        self._tiers, self._parameters_of, self._allocation = tiers, parameters_of, allocation
        self._meter = MemoryMeter(tiers)
        self._outside = self._meter.used()
        self._rows: list[_Row] = []
        self._index: dict[str, int] = {}
        self._running: int | None = None  # unit in its backward pass
        self._start_time = 0.0
        self._end_time = 0.0
        self._gradients: dict[nn.Parameter, int] = {}
        self._registry = SavedTensorRegistry(find_weight, is_tracked, self._fetch, self.enter_unit)

    def run(self, name: str, unit: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a unit's forward pass; `name` identifies the run, `unit` the module."""
        used = self._meter.used()
        row = _Row(name, self._parameters_of(unit), used, used)
        index = self._index[name] = len(self._rows)
        self._rows.append(row)
        inputs = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs)) if is_plain(tensor)}
        hooks = (
            nullcontext()
            if has_other_hooks()
            else self._registry.hooks(name, lambda record: self._record_saved(index, record, inputs))
        )
        self._meter.start_peaks()
        started = perf_counter()
        with hooks:
            out = forward(*args, **kwargs)
        row.forward_seconds = perf_counter() - started
        row.forward_peak = max(row.forward_peak, self._meter.peak())
        for tensor in tensors_in(out):
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self.enter_unit(name))  # type: ignore[no-untyped-call]
        return out

    def enter_unit(self, name: str) -> None:
        if self.is_complete or torch._C._current_graph_task_id() < 0:
            return
        index = self._index[name]
        used = self._meter.used()
        if self._running is None:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish)
            self._allocation.enter_backward()
        else:
            row = self._rows[self._running]
            row.backward_peak = max(row.backward_peak, used)
            if index >= self._running:
                return
            self._finish_unit(row)
        row = self._rows[index]
        row.backward_start = row.backward_peak = used
        self._running, self._start_time = index, perf_counter()
        self._meter.start_peaks()

    def trace(self, state: Iterable[StateItem], *, persist: bool, later: "ProfiledCall") -> Trace:
        """Return the trace, with the shorter times of a complete later pass.

        `state` is used by the update. `persist` is true if gradients exist before a pass starts, as with micro-batches.
        """
        last = len(self._rows) - 1
        seconds = 0.0 if persist else max(0.0, perf_counter() - later._end_time)
        seen: set[nn.Parameter] = set()
        weights = [self._weights(row, seen) for row in self._rows]
        saved = [
            tuple(
                SavedTensor(
                    ordinal=ordinal,
                    bytes=num_bytes,
                    last_reader=last - min(readers),
                    first_reader=last - max(readers),
                    is_input=is_input,
                )
                for ordinal, ((num_bytes, is_input), readers) in enumerate(zip(row.saved, row.readers, strict=True))
            )
            for row in self._rows
        ]
        units = tuple(self._unit(index, weights, saved, later._seconds_of(row)) for index, row in enumerate(self._rows))
        return Trace(
            units=units,
            outside_bytes=self._outside,
            state=tuple(state),
            update_seconds=seconds,
            gradients_persist=persist,
        )

    def _seconds_of(self, row: _Row) -> tuple[float, float]:
        """Return the faster forward and backward seconds of a unit in both passes."""
        other = self._rows[self._index[row.name]] if row.name in self._index else row
        return min(row.forward_seconds, other.forward_seconds), min(row.backward_seconds, other.backward_seconds)

    def _unit(
        self,
        index: int,
        weights: list[tuple[Weight, ...]],
        saved: list[tuple[SavedTensor, ...]],
        seconds: tuple[float, float],
    ) -> Unit:
        """Return a row for the planner, with unexplained bytes at its start as carried."""
        row, last = self._rows[index], len(self._rows) - 1
        saved_bytes = sum(tensor.bytes for earlier in saved[:index] for tensor in earlier)
        inputs = sum(tensor.bytes for tensor in saved[index] if tensor.is_input)
        carried = row.forward_start - self._outside - saved_bytes - inputs
        start = row.backward_start or 0  # without a backward pass, its bytes are 0
        alive = sum(tensor.bytes for unit in saved for tensor in unit if tensor.last_reader >= last - index)
        at_rest = sum(weight.gradient_bytes for later in weights[index + 1 :] for weight in later)
        return Unit(
            name=row.name,
            weights=weights[index],
            saved=saved[index],
            forward_seconds=seconds[0],
            backward_seconds=seconds[1],
            forward_bytes=max(0, row.forward_peak - row.forward_start),
            backward_bytes=max(0, row.backward_peak - start),
            forward_carried_bytes=max(0, carried),
            backward_carried_bytes=max(0, start - self._outside - alive - at_rest),
        )

    def _weights(self, row: _Row, seen: set[nn.Parameter]) -> tuple[Weight, ...]:
        """Return the weights of a unit that are not shared with an earlier unit."""
        new = [(name, parameter) for name, parameter in row.parameters if parameter not in seen]
        seen.update(parameter for _, parameter in new)
        return tuple(
            Weight(name=name, bytes=parameter.nbytes, gradient_bytes=self._gradients.get(parameter, 0))
            for name, parameter in new
        )

    def _record_saved(self, index: int, record: SavedStorage, inputs: set[int]) -> None:
        unit, number = record.key
        row = self._rows[self._index[unit]]
        if number == len(row.saved):
            assert record.original is not None, "the warm-up offloads no tensors"
            row.saved.append((record.num_bytes, record.original.untyped_storage()._cdata in inputs))
            row.readers.append(set())
            self._meter.add(record)
        row.readers[number].add(index)
        running = self._rows[index]
        running.forward_peak = max(running.forward_peak, self._meter.used())

    def _fetch(self, record: SavedStorage) -> Tensor:
        assert record.original is not None, "the warm-up offloads no tensors"
        return record.original

    def _finish_unit(self, row: _Row) -> None:
        row.backward_seconds = perf_counter() - self._start_time
        row.backward_peak = max(row.backward_peak, self._meter.peak())

    def _finish(self) -> None:
        if self._running is not None:
            self._finish_unit(self._rows[self._running])
        for row in self._rows:
            for _, parameter in row.parameters:
                gradient = parameter.grad
                if (
                    gradient is not None
                    and self._tiers.tier_of(gradient) is not None
                    and not hasattr(parameter, "flat_grad")
                ):
                    self._gradients[parameter] = gradient.nbytes
        self.is_complete, self._end_time = True, perf_counter()
