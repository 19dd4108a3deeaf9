"""Random training steps as data, and an independent simulator of plans.

The simulator lists every object in fast memory, byte by byte. It starts and ends copies as specified in `UnitDecision` and
`Trace`. Each offload ends as late as possible: only when the next slot needs the memory (or, `eager`, as early as
possible).
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from hypothesis import strategies

from dithc.engine.automem.planning.decision import MemoryLevel, UnitDecision
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.trace import SavedTensor, StateItem, Trace, Unit, Weight


@dataclass
class FastMemory:
    """Content and peak use of fast memory."""

    objects: dict[Hashable, int] = field(default_factory=dict)
    peak: int = 0

    @property
    def used(self) -> int:
        return sum(self.objects.values())

    def put(self, key: Hashable, num_bytes: int) -> None:
        assert key not in self.objects, f"{key} already exists"
        self.objects[key] = num_bytes
        self.peak = max(self.peak, self.used)

    def drop(self, key: Hashable) -> None:
        del self.objects[key]


@dataclass
class Simulation:
    """Plan simulated slot by slot; `peaks` has one entry per phase (2 L + 1)."""

    trace: Trace
    plan: Plan
    eager: bool = False
    memory: FastMemory = field(default_factory=FastMemory)
    peaks: list[int] = field(default_factory=list)
    loaded_bytes: int = 0
    offloaded_bytes: int = 0
    missing_bytes: int = 0  # missing bytes of a slot's promised memory after all offloads
    leaving: deque[tuple[Hashable, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.num_units = len(self.trace.units)
        self.names = [unit.name for unit in self.trace.units]
        self.begin()
        for slot in range(2 * self.num_units):
            while self.eager and self.leaving:
                self.memory.drop(self.leaving.popleft()[0])
            self.memory.peak = self.memory.used
            self.run_slot(slot)
            self.peaks.append(self.memory.peak)
        while self.leaving:
            self.memory.drop(self.leaving.popleft()[0])
        self.peaks.append(self.memory.used)

    def decision(self, index: int) -> UnitDecision:
        return self.plan.units[self.names[index]]

    def begin(self) -> None:
        put = self.memory.put
        put("outside", self.trace.outside_bytes)
        for item in self.trace.state:
            if self.plan.state[item.name] == "fast":
                put(("state", item.name), item.bytes)
        for index, unit in enumerate(self.trace.units):
            if self.decision(index).weights == "fast":
                put(("weights", index), sum(weight.bytes for weight in unit.weights))
            if self.decision(index).gradients == "fast" and self.trace.gradients_persist:
                put(("gradient", index), sum(weight.gradient_bytes for weight in unit.weights))

    def starts(self, index: int) -> tuple[int, int]:
        """Return the slots at which a unit's loads start, for forward and for backward."""
        decision = self.decision(index)
        forward, backward = index, 2 * self.num_units - 1 - index
        return max(0, forward - decision.forward_ahead), max(0, backward - decision.backward_ahead)

    def is_kept(self, index: int) -> bool:
        return self.starts(index)[1] <= index

    def is_dropped(self, index: int, tensor: SavedTensor) -> bool:
        own = self.num_units - 1 - index
        return (
            self.decision(index).recompute and not tensor.is_input and tensor.first_reader == tensor.last_reader == own
        )

    def tensors(self):
        for index, unit in enumerate(self.trace.units):
            for tensor in unit.saved:
                if not self.is_dropped(index, tensor):
                    yield index, tensor, tensor.first_reader, self.decision(index).saved[tensor.ordinal] == "offload"

    def due(self, slot: int) -> list[tuple[Hashable, int]]:
        """Return the loads that must start at a slot."""
        found: list[tuple[Hashable, int]] = []
        for index, unit in enumerate(self.trace.units):
            if self.decision(index).weights == "copied":
                forward, backward = self.starts(index)
                if forward == slot or (backward == slot and not self.is_kept(index)):
                    found.append((("copy", index), unit.weight_bytes))
        for index, tensor, first, offloaded in self.tensors():
            if offloaded and max(self.num_units, self.starts(self.num_units - 1 - first)[1]) == slot:
                found.append((("saved", index, tensor.ordinal), tensor.bytes))
        return found

    def run_slot(self, slot: int) -> None:
        is_forward = slot < self.num_units
        index = slot if is_forward else 2 * self.num_units - 1 - slot
        unit, decision, memory = self.trace.units[index], self.decision(index), self.memory
        if is_forward:
            for owner, tensor, _, _ in self.tensors():
                if owner == index and tensor.is_input:
                    memory.put(("saved", owner, tensor.ordinal), tensor.bytes)
        memory.put("carried", unit.forward_carried_bytes if is_forward else unit.backward_carried_bytes)
        self.wait_for_memory(decision.required_fast_bytes if is_forward else decision.backward_required_fast_bytes)
        for key, num_bytes in self.due(slot):
            memory.put(key, num_bytes)
            self.loaded_bytes += num_bytes
        assert decision.weights != "copied" or ("copy", index) in memory.objects
        (self.forward if is_forward else self.backward)(index)
        memory.drop("carried")

    def wait_for_memory(self, required_fast_bytes: int) -> None:
        budget = self.plan.fast.budget_bytes
        if budget is None:
            return
        while self.leaving and budget - self.memory.used < required_fast_bytes:
            self.memory.drop(self.leaving.popleft()[0])
            self.memory.peak = self.memory.used
        self.missing_bytes = max(self.missing_bytes, required_fast_bytes - (budget - self.memory.used))

    def forward(self, index: int) -> None:
        unit, memory = self.trace.units[index], self.memory
        memory.put("working", unit.forward_bytes)
        memory.drop("working")
        for owner, tensor, first, offloaded in self.tensors():
            key = ("saved", owner, tensor.ordinal)
            if owner == index and not tensor.is_input:
                memory.put(key, tensor.bytes)
            if offloaded and max(owner, self.num_units - 1 - first) == index:
                memory.drop(key)
                memory.put(("leaving", *key), tensor.bytes)
                self.leaving.append((("leaving", *key), tensor.bytes))
                self.offloaded_bytes += tensor.bytes
        if self.decision(index).weights == "copied" and not self.is_kept(index):
            memory.drop(("copy", index))

    def backward(self, index: int) -> None:
        unit, decision, memory = self.trace.units[index], self.decision(index), self.memory
        position = self.num_units - 1 - index
        for owner, tensor, first, _ in self.tensors():
            assert not first <= position <= tensor.last_reader or ("saved", owner, tensor.ordinal) in memory.objects
        if decision.recompute:
            memory.put("again", unit.forward_bytes)
            memory.drop("again")
            memory.put("again", sum(tensor.bytes for tensor in unit.saved if not tensor.is_input))
        memory.put("working", unit.backward_bytes)
        memory.drop("working")
        if decision.recompute:
            memory.drop("again")
        for owner, tensor, _, _ in self.tensors():
            if tensor.last_reader == position:
                memory.drop(("saved", owner, tensor.ordinal))
        if decision.weights == "copied":
            memory.drop(("copy", index))
        gradient_bytes = sum(weight.gradient_bytes for weight in unit.weights)
        if decision.gradients == "slow":
            self.offloaded_bytes += gradient_bytes
        elif not self.trace.gradients_persist:
            memory.put(("gradient", index), gradient_bytes)


@strategies.composite
def traces(draw: strategies.DrawFn) -> Trace:
    """Draw steps of up to seven units: odd sizes, frozen weights, tensors read by several units."""
    number = strategies.integers
    num_units = draw(number(1, 7))
    seconds = strategies.floats(0, 4)
    units = []
    for index in range(num_units):
        own = num_units - 1 - index
        saved = []
        for ordinal in range(draw(number(0, 3))):
            first = draw(number(0, own)) if draw(number(0, 3)) == 0 else own
            saved.append(tensor(ordinal, draw(number(0, 99)), own, first, is_input=ordinal == 0))
        sizes = enumerate(draw(strategies.lists(number(0, 99), max_size=2)))
        weights = [weight(f"w{index}.{part}", size, draw(number(0, 3))) for part, size in sizes]
        units.append(
            Unit(
                name=f"u{index}",
                weights=tuple(weights),
                saved=tuple(saved),
                forward_seconds=draw(seconds),
                backward_seconds=draw(seconds),
                forward_bytes=sum(tensor.bytes for tensor in saved if not tensor.is_input) + draw(number(0, 60)),
                backward_bytes=sum(weight.gradient_bytes for weight in weights) + draw(number(0, 60)),
                forward_carried_bytes=draw(number(0, 20)),
                backward_carried_bytes=draw(number(0, 20)),
            )
        )
    state = tuple(StateItem(name=f"s{item}", bytes=draw(number(0, 200))) for item in range(draw(number(0, 3))))
    persist = draw(strategies.booleans())
    return Trace(units=tuple(units), outside_bytes=draw(number(0, 30)), state=state, gradients_persist=persist)


def weight(name: str, size: int, kind: int) -> Weight:
    """Return a weight: frozen (0), with a gradient of another type (1), or with one of its own size."""
    return Weight(name=name, bytes=size, gradient_bytes=[0, 17, size, size][kind])


def tensor(ordinal: int, size: int, last: int, first: int | None = None, *, is_input: bool = False) -> SavedTensor:
    """Return a saved tensor by its last and first reader; by default a single unit reads it."""
    readers = {"last_reader": last, "first_reader": last if first is None else first}
    return SavedTensor(ordinal=ordinal, bytes=size, is_input=is_input, **readers)


def level(name: str, budget: int | None, rate: float, read_rate: float | None = None) -> MemoryLevel:
    read_rate = rate if read_rate is None else read_rate
    return MemoryLevel(name=name, budget_bytes=budget, copy_bytes_per_second=rate, read_bytes_per_second=read_rate)


def unit(
    name: str,
    *,
    weight: int = 0,
    saved: tuple[SavedTensor, ...] = (),
    seconds: tuple[float, float] = (1.0, 2.0),
    working: tuple[int, int] = (0, 0),
) -> Unit:
    """Return a unit with at most one weight; `seconds` and `working` are for forward and backward."""
    return Unit(
        name=name,
        weights=(Weight(name=f"{name}.weight", bytes=weight, gradient_bytes=weight),) if weight else (),
        saved=saved,
        forward_seconds=seconds[0],
        backward_seconds=seconds[1],
        forward_bytes=working[0],
        backward_bytes=working[1],
    )


def blocks(num_blocks: int, *, weight: int = 10, saved: int = 30, seconds: tuple[float, float] = (1.0, 2.0)) -> Trace:
    """Return equal blocks, each with a weight and one saved tensor."""
    return Trace(
        units=tuple(
            unit(
                f"block{index}",
                weight=weight,
                saved=(tensor(0, saved, num_blocks - 1 - index),) if saved else (),
                seconds=seconds,
                working=(saved + 5, weight + 5),
            )
            for index in range(num_blocks)
        ),
        outside_bytes=1,
        state=(StateItem(name="moments", bytes=2 * weight * num_blocks),) if weight else (),
    )
