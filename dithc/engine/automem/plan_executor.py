"""Execution of a plan in a call of the model: hooks of Algorithm 1 around each unit's forward and backward pass."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dithc.engine.automem.allocation_mode import AllocationMode, BackwardEndHook
from dithc.engine.automem.planning import ScheduledPass, UnitDecision
from dithc.engine.automem.saved_tensor_transfers import SavedTensorTransfers
from dithc.engine.automem.saved_tensors import Key, SavedTensorRegistry, other_hooks_are_on, tensors_in
from dithc.engine.automem.weight_copies import WeightCopies


@dataclass
class ModelLifetime:
    """State of a managed model; `is_over` (closed or deleted) stops all moves, and running passes use tensors in place."""

    is_over: bool = False


@dataclass(eq=False, kw_only=True)
class PlanContext:
    """Shared state of all calls under one plan; tensors saved by `needs_hooks` may move."""

    turns: Sequence[ScheduledPass]  # the forward, then the backward passes of the units
    decisions: Mapping[str, UnitDecision]
    moves: SavedTensorTransfers
    weights: WeightCopies
    parameters_of: Callable[[str], Sequence[nn.Parameter]]
    weight_at: Callable[[int], nn.Parameter | None]
    life: ModelLifetime
    recomputed: int = 0  # units to run again

    def __post_init__(self) -> None:
        self.num_units = len(self.turns) // 2
        self.turn_of = {turn.unit: number for number, turn in enumerate(self.turns[: self.num_units])}
        self.needs_hooks = {name for name, decision in self.decisions.items() if decision.moves_tensors}
        # A tensor of an earlier unit may be offloaded after a later unit that also saved it.
        self.needs_hooks |= {turn.unit for turn in self.turns if turn.offload_saved}

    def backward_turn(self, name: str) -> int:
        return 2 * self.num_units - 1 - self.turn_of[name]

    def begin(self) -> None:
        """Start the first loads of a step, before its first call."""
        for name in self.turns[0].load_weights if self.turns else ():
            self.weights.load(name, self.parameters_of(name))


class ManagedCall:
    """One call of the model and its backward passes."""

    def __init__(self, course: PlanContext, *, mode: AllocationMode) -> None:
        self._course, self._mode = course, mode
        self._moves, self._weights = course.moves, course.weights
        self._book = SavedTensorRegistry(
            weight_at=course.weight_at, is_tracked=self._moves.is_tracked, fetch=self._moves.fetch, reached=self.reached
        )
        self._started = 0  # forward turns with started loads
        self._task = -1  # id of the running backward pass
        self._backward_started = course.num_units
        self._backward_turn = 0
        self._brought: list[Key] = []

    def run(self, name: str, unit: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a unit's forward pass; `name` identifies the run, `unit` the module."""
        course = self._course
        number = course.turn_of.get(name)
        if number is None:
            return forward(*args, **kwargs)  # not in the plan: all tensors are used in place
        turn, decision = course.turns[number], course.decisions[name]
        with_gradient = torch.is_grad_enabled()
        self._moves.make_room(decision.room_bytes)
        while self._started <= number:
            for other in course.turns[self._started].load_weights:
                if with_gradient or course.turn_of[other] >= self._started:  # other loads are for backward
                    self._weights.load(other, course.parameters_of(other))
            self._started += 1
        parameters = course.parameters_of(name) if decision.weights == "copied" else ()
        self._weights.use(parameters)
        if decision.recompute and with_gradient:
            course.recomputed += 1
            forward = partial(checkpoint, forward, use_reentrant=False)
        is_hooked = with_gradient and name in course.needs_hooks and not other_hooks_are_on()
        try:
            with self._book.hooks(name) if is_hooked else nullcontext():
                out = forward(*args, **kwargs)
        finally:
            self._weights.rest(parameters)
            if not (turn.keep_weights and with_gradient):
                self._weights.release(name, parameters)
        for key in turn.offload_saved:
            record = self._book.named.get(key)
            if record is not None:
                self._moves.offload(record)
        for tensor in tensors_in(out) if with_gradient else ():
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self.reached(name))  # type: ignore[no-untyped-call]
        return out

    def reached(self, name: str) -> None:
        task = torch._C._current_graph_task_id()
        if task < 0 or self._course.life.is_over:
            return  # the call is over, or a saved tensor was read outside of a backward pass
        if task != self._task:
            self._begin_backward(task)
        if name not in self._course.turn_of:
            return
        turn = self._course.backward_turn(name)
        if turn > self._backward_turn:
            self._enter_backward(turn)

    def _begin_backward(self, task: int) -> None:
        self._task, self._backward_turn = task, 0
        self._backward_started = self._course.num_units
        self._mode.enter_backward()
        torch.autograd.Variable._execution_engine.queue_callback(BackwardEndHook(partial(self._end_backward, task)))

    def _enter_backward(self, turn: int) -> None:
        """Prepare a unit's backward pass (Algorithm 1): release the previous unit, start due loads, wait for own loads."""
        course = self._course
        for earlier in range(max(self._backward_turn, course.num_units), turn):
            self._release(course.turns[earlier].unit)
        self._backward_turn = turn
        name = course.turns[turn].unit
        decision = course.decisions[name]
        self._moves.make_room(decision.backward_room_bytes)
        while self._backward_started <= turn:
            now = course.turns[self._backward_started]
            for other in now.load_weights:
                if course.backward_turn(other) >= turn:
                    self._weights.load(other, course.parameters_of(other))
            for key in now.load_saved:
                record = self._book.named.get(key)
                if record is not None:
                    self._moves.load(record)
                    self._brought.append(key)
            self._backward_started += 1
        if decision.weights == "copied":
            self._weights.use(course.parameters_of(name))

    def _release(self, name: str) -> None:
        if self._course.decisions[name].weights == "copied":
            parameters = self._course.parameters_of(name)
            self._weights.rest(parameters)
            self._weights.release(name, parameters)

    def _end_backward(self, task: int) -> None:
        """Restore all homes and free all copies after a complete or failed backward pass."""
        if task != self._task:
            return
        self._task = -1
        self._weights.release_all()
        for key in self._brought:
            record = self._book.named.get(key)
            if record is not None and record.back is not None:  # the graph still needs it (retain_graph)
                record.back = record.ticket = None
        self._brought.clear()
        self._moves.settle()
