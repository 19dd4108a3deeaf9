"""Memory of a training run: tiers, copies between them, and AutoMem for the model.

Only this module decides whether memory is managed. Other modules query `TrainingMemory` for placement and report steps.
"""

import json
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from dithc.config import training
from dithc.core.artifacts import CheckpointStore, atomic_write
from dithc.core.logging import get_logger, user_error
from dithc.core.units import GIB
from dithc.engine.automem import AutoMem, Manager, get_manager
from dithc.engine.comm import Group
from dithc.engine.hardware import discover_machine
from dithc.engine.memory import CopyEngine, Tiers, TierSpec, tier_specs
from dithc.model import DiT
from dithc.train.background import free_cores
from dithc.train.checkpoints import TrainingState
from dithc.train.state_placement import Allocator, new_empty

PLAN_FILE = "automem.json"
# Metrics of a step if memory is managed.
MEMORY = ("loaded_bytes", "offloaded_bytes", "stall_seconds", "fast_peak_bytes", "spills")
log = get_logger(__name__)


class TrainingMemory:
    """Memory of one rank of a run, a context manager; `tiers` (fastest first) is None if memory is not managed."""

    def __init__(self, settings: training.MemoryConfig | None = None, *, group: Group | None = None) -> None:
        """Open the tiers of `machine.memory`; UserError for a bad folder, or for `automem: on` with one tier."""
        self._settings = settings or training.MemoryConfig(automem="off")
        self._manager: Manager | None = None
        self._state: TrainingState | None = None
        self._store: CheckpointStore | None = None
        self._stack = ExitStack()
        self.tiers, self._copies = None, None
        if chain := _managed_tiers(self._settings, ranks=1 if group is None else group.local_size):
            self.tiers = Tiers(chain)
            self._stack.callback(self.tiers.close)
            self._copies = _open_copies(self.tiers)
            self._stack.callback(self._copies.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End copies and tiers; held tensors stay valid, and the model runs unmanaged."""
        if self._manager is not None:
            self._manager.close()
        self._manager = self._state = None
        self._stack.close()

    def wrap(self, model: DiT, run: training.RunConfig) -> DiT:
        """Apply AutoMem to the model of a run and return the model."""
        AutoMem(
            model,
            recompute=run.activation_checkpointing,
            tiers=self.tiers,
            copies=self._copies,
            allow_recompute=self._settings.allow_recompute,
        )
        self._manager = get_manager(model)
        return model

    def paused(self) -> AbstractContextManager[None]:
        """Suspend recording and moves, for passes outside of training steps."""
        return nullcontext() if self._manager is None else self._manager.paused()

    @property
    def allocator(self) -> Allocator:
        """Allocator of state that outlives a step."""
        return new_empty if self._manager is None else self._manager.allocate_state

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in a tier, which then determines its memory node."""
        return self.tiers is not None and self.tiers.tier_of(tensor) is not None

    def follow(self, state: TrainingState, *, store: CheckpointStore | None = None) -> None:
        """Move a state that `allocator` allocated by the plan once it exists, and store the plan (first rank)."""
        self._state, self._store = state, store
        if self._manager is not None:
            state.strategy.relocate(lambda name, value: self.allocator(name, value).copy_(value))

    def begin_step(self) -> None:
        """Begin a step without held gradients: two recorded steps, then a plan for later steps."""
        if self._manager is None:
            return
        is_new = self._manager.plan is None
        self._manager.begin_step()
        if is_new and self._manager.plan is not None:
            self._apply_plan()

    def metrics(self) -> dict[str, float]:
        """Return the memory metrics of this step, named as in `MEMORY`; empty if memory is not managed."""
        if self._manager is None or self.tiers is None:
            return {}
        counters = self._manager.counters()
        peak = self.tiers.fast.counters().peak_backed_bytes
        values = (counters.loaded_bytes, counters.offloaded_bytes, counters.stall_seconds, peak, counters.spills)
        return dict(zip(MEMORY, values, strict=True))

    @property
    def kept_bytes(self) -> int | None:
        """Bytes that units of a recorded step kept for backward; None without a recording."""
        if self._manager is None or self._manager.trace is None:
            return None
        return sum(saved.bytes for unit in self._manager.trace.units for saved in unit.saved if not saved.is_input)

    def document(self) -> dict[str, Any] | None:
        """Return tiers, trace and plan for JSON; None before a plan exists."""
        if self._manager is None or self._manager.plan is None or self._manager.trace is None or self.tiers is None:
            return None
        tiers = [
            {
                "name": tier.spec.name,
                "kind": tier.spec.kind,
                "budget_bytes": tier.spec.budget_bytes,
                "peak_backed_bytes": tier.counters().peak_backed_bytes,
            }
            for tier in self.tiers
        ]
        return {"tiers": tiers, "trace": self._manager.trace.to_dict(), "plan": self._manager.plan.to_dict()}

    def _apply_plan(self) -> None:
        if self._state is not None:
            self._state.strategy.relocate(self._place_state)
            self._state.optimizer.relocate(self._place_state)
            self._state.ema.relocate(self._place_state)
        if self.tiers is not None and self.tiers.slow is not None:
            self.tiers.slow.pool.trim()  # release the memory of moved state
        if self._store is None:
            return
        path = self._store.folder / PLAN_FILE
        try:
            atomic_write(path, json.dumps(self.document()) + "\n")
        except OSError as error:
            log.warning(f"the memory plan could not be written to {path}: {error}")

    def _place_state(self, name: str, value: Tensor) -> Tensor:
        """Return the tensor itself, or its copy in a new planned tier."""
        assert self._manager is not None
        assert self._manager.plan is not None
        assert self.tiers is not None
        if value.is_meta:
            return self.allocator(name, value)
        place = "fast" if self.tiers.fast.holds(value) else "slow"
        if self._manager.plan.state.get(name, place) == place:
            return value
        return self.allocator(name, value).copy_(value)


def _managed_tiers(settings: training.MemoryConfig, *, ranks: int) -> list[TierSpec]:
    """Return the tiers to manage, and log the choice; with one tier empty, or UserError for `automem: on`."""
    options = [name for name in ("fast_memory_gib", "spill_folder", "allow_recompute") if getattr(settings, name)]
    if settings.automem == "off":
        if options:
            log.warning(f"machine.memory: {', '.join(options)} has no effect, because automem is off")
        return []
    chain = tier_specs(
        discover_machine(),
        fast_budget_bytes=_bytes(settings.fast_memory_gib),
        spill_folder=None if settings.spill_folder is None else Path(settings.spill_folder),
        file_bytes=_bytes(settings.spill_gib),
        ranks=ranks,
    )
    if len(chain) > 2:
        below = ", ".join(spec.name for spec in chain[2:])
        log.info(f"memory is planned for {chain[0].name} and {chain[1].name}; overflow goes to {below}")
    if len(chain) > 1:
        return chain
    if settings.automem == "on":
        raise user_error(
            "machine.memory.automem",
            got=f"on, with a single memory tier ({', '.join(spec.name for spec in chain)})",
            expected="at least two tiers",
            fix="set fast_memory_gib, or spill_folder and spill_gib; or automem: auto, which then does not move data",
        )
    if settings.allow_recompute:
        log.warning("machine.memory: allow_recompute has no effect with a single memory tier")
    return []


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else round(gib * GIB)


def _open_copies(tiers: Tiers) -> CopyEngine:
    """Create both streams, each on a core without compute threads if the core plan has one."""
    cores = free_cores()
    if not cores:
        log.info("copies between memory tiers: no core is reserved, so copy threads share cores with compute threads")
        return CopyEngine(tiers)
    load, offload = cores[0][0], cores[-1][0]
    log.info(f"copies between memory tiers: loads on CPU {load}, offloads on CPU {offload}")
    return CopyEngine(tiers, load_core=load, offload_core=offload)
