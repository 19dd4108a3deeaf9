"""Execution of a plan in a call of the model: hooks of Algorithm 1 around each unit's forward and backward pass."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dithc.engine.automem.allocation_mode import AllocationMode, BackwardEndHook
from dithc.engine.automem.planning import ScheduledPass, UnitDecision
from dithc.engine.automem.saved_tensor_transfers import SavedTensorTransfers
from dithc.engine.automem.saved_tensors import Key, SavedTensorRegistry, has_other_hooks, tensors_in
from dithc.engine.automem.weight_copies import WeightCopies


@dataclass(eq=False, kw_only=True)
class PlanContext:
    """Shared state of all calls under one plan; tensors saved by `needs_hooks` may move."""

    passes: Sequence[ScheduledPass]  # the forward, then the backward passes of the units
    decisions: Mapping[str, UnitDecision]
    transfers: SavedTensorTransfers
    weights: WeightCopies
    parameters_of: Callable[[str], Sequence[nn.Parameter]]
    find_weight: Callable[[int], nn.Parameter | None]
    closed: Event  # set when the model is closed or deleted; running passes then use tensors in place
    num_recomputed: int = 0  # units to run again

    def __post_init__(self) -> None:
        self.num_units = len(self.passes) // 2
        self.index_of = {scheduled.unit: index for index, scheduled in enumerate(self.passes[: self.num_units])}
        self.needs_hooks = {name for name, decision in self.decisions.items() if decision.moves_tensors}
        # A tensor of an earlier unit may be offloaded after a later unit that also saved it.
        self.needs_hooks |= {scheduled.unit for scheduled in self.passes if scheduled.offload_saved}

    def backward_index(self, name: str) -> int:
        return 2 * self.num_units - 1 - self.index_of[name]

    def copied_parameters(self, name: str) -> Sequence[nn.Parameter]:
        return self.parameters_of(name) if self.decisions[name].weights == "copied" else ()

    def begin(self) -> None:
        """Start the first loads of a step, before its first call."""
        for name in self.passes[0].load_weights if self.passes else ():
            self.weights.load(name, self.parameters_of(name))


class ManagedCall:
    """One call of the model and its backward passes."""

    def __init__(self, context: PlanContext, *, allocation: AllocationMode) -> None:
        self._context, self._allocation = context, allocation
        self._transfers, self._weights = context.transfers, context.weights
        is_tracked, fetch = context.transfers.is_tracked, context.transfers.fetch
        self._registry = SavedTensorRegistry(context.find_weight, is_tracked, fetch, self.enter_unit)
        self._started = 0  # forward slots with started loads
        self._backward_task = -1  # id of the running backward pass
        self._backward_started = context.num_units
        self._backward_index = 0
        self._loaded: list[Key] = []

    def run(self, name: str, unit: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a unit's forward pass; `name` identifies the run, `unit` the module."""
        context = self._context
        index = context.index_of.get(name)
        if index is None:
            return forward(*args, **kwargs)  # not in the plan: all tensors are used in place
        scheduled, decision = context.passes[index], context.decisions[name]
        with_gradient = torch.is_grad_enabled()
        self._transfers.wait_for_memory(decision.required_fast_bytes)
        while self._started <= index:
            for other in context.passes[self._started].load_weights:
                if with_gradient or context.index_of[other] >= self._started:  # other loads are for backward
                    self._weights.load(other, context.parameters_of(other))
            self._started += 1
        parameters = context.copied_parameters(name)
        self._weights.use(parameters)
        if decision.recompute and with_gradient:
            context.num_recomputed += 1
            forward = partial(checkpoint, forward, use_reentrant=False)
        is_hooked = with_gradient and name in context.needs_hooks and not has_other_hooks()
        try:
            with self._registry.hooks(name) if is_hooked else nullcontext():
                out = forward(*args, **kwargs)
        finally:
            self._weights.restore(parameters)
            if not (scheduled.keep_weights and with_gradient):
                self._weights.release(name, parameters)
        for key in scheduled.offload_saved:
            record = self._registry.records.get(key)
            if record is not None:
                self._transfers.offload(record)
        for tensor in tensors_in(out) if with_gradient else ():
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self.enter_unit(name))  # type: ignore[no-untyped-call]
        return out

    def enter_unit(self, name: str) -> None:
        task = torch._C._current_graph_task_id()
        if task < 0 or self._context.closed.is_set():
            return  # the call is over, or a saved tensor was read outside of a backward pass
        if task != self._backward_task:
            self._begin_backward(task)
        if name not in self._context.index_of:
            return
        index = self._context.backward_index(name)
        if index > self._backward_index:
            self._enter_backward(index)

    def _begin_backward(self, task: int) -> None:
        self._backward_task, self._backward_index = task, 0
        self._backward_started = self._context.num_units
        self._allocation.enter_backward()
        torch.autograd.Variable._execution_engine.queue_callback(BackwardEndHook(partial(self._end_backward, task)))

    def _enter_backward(self, index: int) -> None:
        """Prepare a unit's backward pass (Algorithm 1): release the previous unit, start due loads, wait for own loads."""
        context = self._context
        for earlier in range(max(self._backward_index, context.num_units), index):
            unit = context.passes[earlier].unit
            self._weights.restore(context.copied_parameters(unit))
            self._weights.release(unit, context.copied_parameters(unit))
        self._backward_index = index
        name = context.passes[index].unit
        self._transfers.wait_for_memory(context.decisions[name].backward_required_fast_bytes)
        while self._backward_started <= index:
            due = context.passes[self._backward_started]
            for other in due.load_weights:
                if context.backward_index(other) >= index:
                    self._weights.load(other, context.parameters_of(other))
            for key in due.load_saved:
                record = self._registry.records.get(key)
                if record is not None:
                    self._transfers.load(record)
                    self._loaded.append(key)
            self._backward_started += 1
        self._weights.use(context.copied_parameters(name))

    def _end_backward(self, task: int) -> None:
        """Restore all parameters and free all copies after a complete or failed backward pass."""
        if task != self._backward_task:
            return
        self._backward_task = -1
        self._weights.release_all()
        for key in self._loaded:
            record = self._registry.records.get(key)
            if record is not None and record.fast_copy is not None:  # the graph still needs it (retain_graph)
                record.fast_copy = record.ticket = None
        self._loaded.clear()
        self._transfers.free_offloaded()
