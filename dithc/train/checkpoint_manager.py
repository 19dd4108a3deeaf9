"""Checkpoints for custom training loops: resumed at the start, written in the background, committed atomically."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch

from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import get_logger, user_error
from dithc.core.processes import STOPPED
from dithc.core.tensor_files import TensorFile
from dithc.engine import native
from dithc.engine.comm import Group
from dithc.train.checkpoints import CheckpointWriter, ModuleState
from dithc.train.job import DONE, StepTimer, StopRequests, hold_lease
from dithc.train.optimizer import Optimizer

METADATA = "metadata"
log = get_logger(__name__)


class CheckpointManager:
    """Checkpoints of a custom training loop in a folder; a context manager that all ranks enter.

    Example::

        with CheckpointManager("store/mine", group, optimizer, every=100, metadata={"seed": 0, "batch": 32}) as checkpoints:
            for step in range(checkpoints.step + 1, 1001):     # 1, or the step after the last checkpoint
                x, y = batch_of(step, group.rank)              # must depend on the step only
                strategy.backward(loss_of(net(x), y))
                optimizer.step()
                if not checkpoints.after(step):                # stop requested and saved: start again to continue
                    break
        sys.exit(checkpoints.status)                           # 0, or 75 if stopped

    Committed folders, `step_0000100`, hold `model.safetensors`, `optimizer.safetensors` and `checkpoint.json` (metadata,
    file hashes). A resumed run is bitwise equal with the same number of ranks and threads if batches and random numbers
    depend on the step (`torch.manual_seed(...)` of seed, step and rank). A run with other ranks or sharding also
    resumes; sums then round differently.

    Attributes:
        step: last completed step: 0, the step of the loaded checkpoint, or the last argument of `after`.
        metadata: metadata of the loaded checkpoint, or as given.
        status: exit status after the block: 0 done, 75 stopped and saved.
    """

    def __init__(
        self,
        folder: Path | str,
        group: Group,
        optimizer: Optimizer,
        *,
        every: int = 100,
        keep_last: int = 2,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare; the folder is read at the start of the block.

        Args:
            folder: folder of this run alone, writable by all ranks.
            optimizer: optimizer of a prepared strategy.
            every: steps between checkpoints; the last step is saved too.
            keep_last: number of newest checkpoints to keep.
            metadata: JSON values that must be equal on resume: seed, batch, learning rate.

        Raises:
            UserError: a number is below 1, or the strategy is for ranks outside of the group.
        """
        if min(every, keep_last) < 1:
            got = f"every {every}, keep_last {keep_last}"
            raise user_error("settings of checkpoints", got=got, expected="1 or more", fix="correct the numbers")
        self._group, self._store, self._every = group, CheckpointStore(Path(folder)), every
        strategy = optimizer.strategy
        if strategy.layout.size != group.size:
            raise user_error(
                "strategy of the optimizer",
                got=f"a strategy for {strategy.layout.size} rank(s)",
                expected=f"a strategy for the {group.size} rank(s) of the group",
                fix="create it by Strategy(model, group)",
            )
        types = TensorFile.TYPES
        tensors = strategy.model.state_dict()
        unsupported = [f"{name} of {value.dtype}" for name, value in tensors.items() if value.dtype not in types]
        if unsupported:
            raise user_error(
                "tensors of this model for a checkpoint",
                got=", ".join(unsupported),
                expected=f"tensors of {', '.join(str(dtype).removeprefix('torch.') for dtype in types)}",
                fix="exclude the buffer (`register_buffer(..., persistent=False)`), or split it into supported types",
            )
        self._state = ModuleState(model=strategy.model, optimizer=optimizer, strategy=strategy)
        self._stop, self._timer, self._keep_last = StopRequests(), StepTimer(), keep_last
        self._stack = ExitStack()
        self._has_advanced = False
        # in the form that a checkpoint returns
        self.metadata, self.status = json.loads(json.dumps(dict(metadata or {}))), DONE

    @property
    def step(self) -> int:
        return self._state.step

    def __enter__(self) -> Self:
        """Load the newest intact checkpoint; Lease.Held if another process trains into this folder, or UserError."""
        store, group = self._store, self._group
        with ExitStack() as stack:
            lease = hold_lease(store, group, stack)
            stack.enter_context(self._stop)
            layout = self._state.strategy.layout
            metadata = {
                "ranks": layout.size,
                "strategy": layout.name,
                "threads": torch.get_num_threads(),
                "isa": native.instruction_set(),
                METADATA: self.metadata,
            }
            self._saver = CheckpointWriter(
                store, lease=lease, group=group, metadata=metadata, timer=self._timer, keep_last=self._keep_last
            )
            if lease is not None:
                store.sweep()
            self._saver.resume(self._state, keys=(METADATA,))
            self._stack = stack.pop_all()
        self._step_start = time.monotonic()
        return self

    def after(self, step: int) -> bool:
        """Save if due and advance the save in progress; all ranks call it after each step.

        Returns:
            False on all ranks once any rank must stop (SIGTERM, SIGINT, end of the walltime), else True.

        Raises:
            Lease.Held: another process has taken over.
            UserError: the disk is full; the last checkpoint is intact.
        """
        now = time.monotonic()
        self._timer.step(now - self._step_start)
        self._state.step, self._has_advanced = step, True
        self._saver.poll()
        if step % self._every == 0:
            self._saver.save(self._state)
        self._step_start = time.monotonic()
        reason = self._stop.reason(grace_seconds=self._timer.grace_seconds)
        if not self._group.any(reason is not None):
            return True
        log.warning(f"stopping after step {step}: {reason or 'requested on another rank'}")
        self.status = STOPPED
        return False

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Save the last step, unless the block failed, and wait for the write."""
        with self._stack:
            if error is not None:
                self._saver.abandon()
                return
            if self._has_advanced and self._saver.last != self.step:
                self._saver.save(self._state)
            self._saver.finish()
            self._group.barrier()
