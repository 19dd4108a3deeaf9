"""Run-time memory management of a model: the warm-up, the plan, and the calls under it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from time import perf_counter
from typing import Any, TypeAlias
from weakref import finalize, ref

import torch
from torch import Tensor, nn

from dithc.core.logging import get_logger
from dithc.engine.automem.allocation_mode import AllocationMode
from dithc.engine.automem.deferred_updates import Columns, DeferredUpdates, Operation
from dithc.engine.automem.gradient_offload import OffloadedGradients
from dithc.engine.automem.plan_executor import ManagedCall, PlanContext
from dithc.engine.automem.planning import MemoryLevel, Plan, UnitDecision, schedule_passes
from dithc.engine.automem.planning import make_plan as plan_of
from dithc.engine.automem.profiler import ProfiledCall
from dithc.engine.automem.saved_tensor_transfers import SavedTensorTransfers
from dithc.engine.automem.saved_tensors import FLOOR_BYTES
from dithc.engine.automem.trace import StateItem, Trace
from dithc.engine.automem.units import units_of
from dithc.engine.automem.weight_copies import BeforeLoad, ParameterAddresses, WeightCopies, is_worth_moving, move_into
from dithc.engine.memory import CopyEngine, StreamedTensors, Tier, Tiers

log = get_logger(__name__)

Call: TypeAlias = ProfiledCall | ManagedCall
# Decision for units that are not in the plan: no moves.
NO_MOVES = UnitDecision(weights="in place", gradients="fast", saved=())


@dataclass(frozen=True, kw_only=True)
class TransferCounters:
    """Traffic since `begin_step`, or since the start."""

    loaded_bytes: int
    offloaded_bytes: int
    hits: int  # uses of weights and saved tensors with a copy in fast memory
    stall_seconds: float
    spills: int  # allocations that fast memory could not hold
    recomputed_units: int  # forward passes repeated in backward


class Manager:
    """Executor of one model's plan, with the modules of its `units`.

    `plan` and `trace` are None during the warm-up. `active` is the running call that is recorded or managed.
    """

    def __init__(
        self,
        model: nn.Module,
        tiers: Tiers,
        *,
        copies: CopyEngine | None = None,
        plan: Plan | None = None,
        allow_recompute: bool = False,
    ) -> None:
        """Move the weights to the slow of at least two tiers, and let operators allocate outputs in the fast tier.

        Without `copies`, this manager starts its own threads. A given plan is used after the warm-up.
        """
        assert tiers.slow is not None, "management needs at least two tiers"
        self.tiers = tiers
        self.plan: Plan | None = None
        self.trace: Trace | None = None
        self.active: Call | None = None
        self._model, self._given_plan, self._allow_recompute = ref(model), plan, allow_recompute
        self.units = {name: ref(module) for name, module in units_of(model)}
        self._copies = CopyEngine(tiers) if copies is None else copies
        self._transfers = SavedTensorTransfers(tiers, self._copies)
        self._weights = WeightCopies(tiers.fast, self._copies)
        self._gradients = OffloadedGradients(tiers, self._copies)
        self._streamed = StreamedTensors(tiers, self._copies)
        self._updates = DeferredUpdates(self._streamed)
        self._weights.before_load = self._updates.wait_for
        self._allocation = AllocationMode(tiers.fast.pool)
        self._profiles: list[ProfiledCall] = []  # recorded in the warm-up; only the last may be incomplete
        self._context: PlanContext | None = None
        self._state: dict[str, int] = {}
        self._parameters: dict[str, list[tuple[str, nn.Parameter]]] = {}
        self._storages = ParameterAddresses(())
        self._runs: dict[str, int] = {}
        self._calls = 0  # calls with gradient since begin_step
        self._has_steps = self._is_paused = self._is_preloaded = False
        self._slow = tiers.slow
        move_into(model.parameters(), self._slow)
        tiers.serve()
        self._closed = Event()
        self._finalizer = finalize(
            model, _stop_copies, self._closed, self._updates, tiers, self._copies, copies is None
        )
        self._start_counts = self._counts()

    def begin_step(self) -> None:
        """Start an optimizer step: reset counters, read storages, plan after the warm-up, and start the first loads.

        The warm-up takes two passes because the first is slow, or one pass with a given plan. Without this call, the
        next call of the model creates the plan.
        """
        if not self._finalizer.alive:
            self._start_counts = self._counts()
            return
        if self.plan is None:
            if not self._has_steps:
                self._profiles.clear()
            elif self._is_recorded():
                self._make_plan(persist=self._calls > 1)
        self._has_steps, self._calls = True, 0
        self._start_counts = self._counts()
        if self._context is not None:
            self._weights.release_all()
            self._read_storages()
            self._context.begin()
            self._is_preloaded = True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run the model unmanaged in the block, without recording."""
        self.wait_for_updates()
        previous, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = previous

    def call_before_load(self, before_load: BeforeLoad) -> None:
        """Call a function with the parameters that are copied next. It replaces the wait for deferred updates."""
        self._weights.before_load = before_load

    def allocate_state(self, name: str, like: Tensor) -> Tensor:
        """Return an uninitialized contiguous tensor like `like` in the planned tier for the state `name`.

        Slow memory is used before a plan exists; small tensors never use a file. A second call with a name replaces the
        first. `like` may be a meta tensor.
        """
        if like.nbytes < FLOOR_BYTES and self._slow.spec.kind == "file":
            return self.tiers.fast.empty(like.shape, like.dtype)
        self._state[name] = like.nbytes
        in_fast = self.plan is not None and self.plan.state.get(name) == "fast"
        return (self.tiers.fast if in_fast else self._slow).empty(like.shape, like.dtype)

    def update(
        self, columns: Columns, operation: Operation, *, read_only: Collection[int] = (), defers: bool = False
    ) -> None:
        """Apply an elementwise operation to columns of equally many tensors; the first column holds weights.

        Tensors in a file are changed in pieces (`StreamedTensors`). With `defers`, the rows of units with state in a file
        change during the next forward pass, and each unit waits for its rows. Call `wait_for_updates` before a backward pass,
        and before other access to weights, gradients or state.

        Raises:
            OSError: the disk failed in this or the previous update.
        """
        self._updates.wait()
        if not self._finalizer.alive:
            operation(columns)
            return
        order = self._order_of_use() if defers else {}
        later, now = list[Sequence[Tensor]](), list[Sequence[Tensor]]()
        for row in zip(*columns, strict=True):
            (later if row[0].data_ptr() in order else now).append(row)
        if now:
            for part in self._streamed.parts(list(zip(*now, strict=True)), read_only=read_only):
                operation(part)
            del part  # buffers in fast memory
        if later:
            later.sort(key=lambda row: order[row[0].data_ptr()])
            self._updates.start(list(zip(*later, strict=True)), operation, read_only=read_only)

    def wait_for_updates(self) -> None:
        """Wait for the end of a deferred `update`; OSError if the disk failed."""
        self._updates.wait()

    def _order_of_use(self) -> dict[int, int]:
        """Return the number of the first unit by address of its weights; empty without managed calls of units."""
        order: dict[int, int] = {}
        for number, run in enumerate(() if self._context is None else self._context.index_of):
            for parameter in self._parameters_of(run):
                order.setdefault(parameter.data_ptr(), number)
        return order

    def counters(self) -> TransferCounters:
        start = self._start_counts
        counts = {name: count - start[name] for name, count in self._counts().items()}
        # A wait of the update's thread may have begun before `begin_step`.
        counts["stall_seconds"] = max(0.0, counts["stall_seconds"])
        return TransferCounters(**counts)

    def _counts(self) -> dict[str, Any]:
        """Return the fields of `TransferCounters` since the start."""
        copies = self._copies.counters()
        return {
            "loaded_bytes": copies.loaded_bytes,
            "offloaded_bytes": copies.offloaded_bytes,
            "hits": self._transfers.hits + self._weights.hits,
            "stall_seconds": copies.stall_seconds + self._updates.stall_seconds - self._updates.hidden_seconds,
            "spills": self.tiers.fast.counters().spills,
            "recomputed_units": self._context.num_recomputed if self._context else 0,
        }

    def close(self) -> None:
        """End the management: parameters stay in place, and the model runs as an ordinary module."""
        self._updates.close()
        self._weights.release_all()
        self._weights.before_load = None
        self._gradients.close()
        self._transfers.finish()
        self._finalizer()

    @contextmanager
    def model_call(self) -> Iterator[None]:
        if not self._finalizer.alive:
            self._updates.wait()
            yield
            return
        with self._allocation.active():
            outer = self.active, self._runs
            self.active, self._runs = self._begin_call(), {}
            if self.active is None:
                self._updates.wait()
            try:
                yield
            except BaseException:
                if torch._C._current_graph_task_id() < 0:
                    self._weights.release_all()
                raise
            finally:
                self.active, self._runs = outer

    def run(self, unit: str, forward: Any, args: Any, kwargs: Any) -> Any:
        assert self.active is not None, "checked by the wrapper"
        self._updates.wait_for(parameter for _, parameter in self._parameters.get(unit, ()))
        count = self._runs[unit] = self._runs.get(unit, 0) + 1
        return self.active.run(unit if count == 1 else f"{unit}#{count}", unit, forward, args, kwargs)

    def _begin_call(self) -> Call | None:
        """Return the recorder or executor of a call that starts now."""
        if self._is_paused or torch._C._current_graph_task_id() >= 0:  # recomputation in a backward pass
            return None
        if self.plan is None:
            return self._warm_up()
        self._gradients.refresh()
        if self._context is None:
            return None
        if not self._is_preloaded:
            self._weights.release_all()  # from a call without a backward pass
            self._read_storages()
        self._is_preloaded = False
        return ManagedCall(self._context, allocation=self._allocation)

    def _warm_up(self) -> Call | None:
        is_recorded = self._is_recorded()
        if is_recorded and not self._has_steps:
            model = self._model()
            accumulates = model is not None and any(parameter.grad is not None for parameter in model.parameters())
            self._make_plan(persist=accumulates)
            return self._begin_call()
        if not torch.is_grad_enabled():
            return None
        self._calls += 1
        if is_recorded:
            return None  # for the rest of the step
        self._read_storages()
        if self._profiles and not self._profiles[-1].is_complete:
            self._profiles.pop()  # it had no backward pass
        profiled = ProfiledCall(
            tiers=self.tiers,
            parameters_of=self._parameters.__getitem__,
            find_weight=self._find_weight,
            is_tracked=self._transfers.is_tracked,
            allocation=self._allocation,
        )
        self._profiles.append(profiled)
        return profiled

    def _is_recorded(self) -> bool:
        required = 2 if self._given_plan is None else 1
        return sum(profiled.is_complete for profiled in self._profiles) == required

    def _make_plan(self, *, persist: bool) -> None:
        first, last = self._profiles[0], self._profiles[-1]
        state = [StateItem(name=name, bytes=num_bytes) for name, num_bytes in self._state.items()]
        trace = first.trace(state, persist=persist, later=last)
        if state:
            trace = replace(trace, outside_bytes=trace.outside_bytes + self._streamed.buffer_bytes)
        self.trace = trace
        self._profiles.clear()
        started = perf_counter()
        if self._given_plan is None:
            fast, slow = _level(self.tiers.fast), _level(self._slow)
            self.plan = plan_of(trace, fast=fast, slow=slow, allow_recompute=self._allow_recompute)
        else:
            self.plan = self._given_plan
        level = log.info if self.plan.fits else log.warning
        level("memory plan, computed in %.2f s\n%s", perf_counter() - started, self.plan.describe())
        decisions = {unit.name: self.plan.units.get(unit.name, NO_MOVES) for unit in trace.units}
        self._place_parameters(decisions)
        self._read_storages()
        defers = self._slow.spec.kind == "file" and "slow" in self.plan.state.values()
        if not defers and not any(decision.moves_tensors for decision in decisions.values()):
            return
        self._context = PlanContext(
            passes=schedule_passes(trace, decisions),
            decisions=decisions,
            transfers=self._transfers,
            weights=self._weights,
            parameters_of=self._parameters_of,
            find_weight=self._find_weight,
            closed=self._closed,
        )

    def _place_parameters(self, decisions: Mapping[str, UnitDecision]) -> None:
        num_in_place = 0
        for name, decision in decisions.items():
            module = self.units[name]() if name in self.units else None  # not for the second run of a module
            if module is not None and decision.weights == "fast":
                num_in_place += move_into(module.parameters(), self.tiers.fast)
            if module is not None and decision.gradients == "slow":
                self._gradients.move(module)
        if num_in_place:
            log.info("%d parameters stay in place because other views share their memory", num_in_place)

    def _read_storages(self) -> None:
        """Read the current storages of the parameters, which other code may have moved."""
        for name, unit in self.units.items():
            module = unit()
            parameters = () if module is None else module.named_parameters(prefix=name)
            self._parameters[name] = [(path, parameter) for path, parameter in parameters if is_worth_moving(parameter)]
        model = self._model()
        self._storages = ParameterAddresses(() if model is None else model.parameters())

    def _parameters_of(self, run: str) -> list[nn.Parameter]:
        return [parameter for _, parameter in self._parameters[run.partition("#")[0]]]

    def _find_weight(self, address: int) -> nn.Parameter | None:
        parameter = self._weights.find(address)
        return self._storages.find(address) if parameter is None else parameter


def _level(tier: Tier) -> MemoryLevel:
    return MemoryLevel(
        name=tier.spec.name,
        budget_bytes=tier.spec.budget_bytes,
        copy_bytes_per_second=tier.copy_bytes_per_second,
        read_bytes_per_second=tier.read_bytes_per_second,
    )


def _stop_copies(closed: Event, updates: DeferredUpdates, tiers: Tiers, copies: CopyEngine, is_own: bool) -> None:
    """Finish updates, stop all copies, and restore the previous allocation of operator outputs."""
    updates.close()
    closed.set()
    try:
        copies.drain()
    except RuntimeError as error:  # already closed, or created before a fork
        log.debug("%s", str(error))
    if is_own:
        copies.close()
    tiers.release()
