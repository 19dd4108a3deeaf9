"""Background writer of checkpoints: snapshot between steps, files of every rank, then the commit."""

import time
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dithc.config import training
from dithc.core.artifacts import CheckpointStore, Lease
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.tensor_files import TensorFile, shard_name, write_file
from dithc.engine.comm import Group
from dithc.train.background import Background, Canceled
from dithc.train.checkpoints.snapshot import Key, Snapshot, assign_pieces, key_of
from dithc.train.checkpoints.state import SAME_ON_RESUME, ModuleState
from dithc.train.job import StepTimer, run_once

log = get_logger(__name__)


@dataclass
class _Save:
    """Checkpoint in progress: every rank writes its files to `folder`, then rank 0 commits.

    `stall_seconds` and `work_seconds` are seconds: the wait of the loop for the snapshot, and the work of this rank.
    """

    step: int
    meta: dict[str, Any]
    folder: Path
    task: Background
    start: float
    stall_seconds: float
    work_seconds: float = 0.0
    is_committing: bool = False


class CheckpointWriter:
    """Reader and writer of a run's checkpoints, at most one at a time, while this process holds the lease.

    Every rank writes its own pieces in the background. Call all methods on all ranks between the same two steps. `last`
    is the step of the latest checkpoint loaded, begun or written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        lease: Lease | None,
        group: Group,
        metadata: dict[str, Any],
        timer: StepTimer,
        keep_last: int,
        keep_every: Collection[int] = (),
        position: Callable[[int], dict[str, float]] | None = None,
        mode: training.CheckpointMode = "async",
    ) -> None:
        """Prepare to write `metadata` with every checkpoint, and to keep the last ones and multiples of `keep_every`.

        `lease` is held on rank 0. `position` returns the position in the data at a step, if known.
        """
        self.store, self.lease, self.group = store, lease, group
        self.metadata, self.timer = metadata, timer
        self._keep_last, self._keep_every = keep_last, keep_every
        self._position = position
        self.last: int | None = None
        self._is_blocking = mode == "blocking"
        self._snapshot = Snapshot()
        self._share: set[Key] | None = None
        self._save: _Save | None = None

    def resume(self, state: ModuleState, *, keys: Sequence[str] = SAME_ON_RESUME, **limits: Any) -> bool:
        """Load the newest complete checkpoint within the `limits` of `CheckpointStore.newest`; return whether it exists."""
        checkpoint = self.group.broadcast_object(self.store.newest(**limits) if self.group.rank == 0 else None)
        if checkpoint is None:
            log.info(f"no checkpoint in {self.store.folder} to continue")
            return False
        state.restore(checkpoint, metadata=self.metadata, keys=keys)
        self.last = state.step
        log.info(f"continuing from step {state.step} in {checkpoint.folder}")
        return True

    def save(self, state: ModuleState) -> None:
        """Snapshot the state and begin to write it, after the previous checkpoint is complete; raises like `poll`."""
        self._finish_previous()
        if self.group.any(self._is_lease_lost()):
            raise self._lease_error(state.step)
        start = time.monotonic()
        folder = run_once(self.group, lambda: self.store.begin(state.step))
        contents = self._contents(state)
        copies = None if self._is_blocking else self._snapshot.copy(contents, ranks_on_node=self.group.local_size)
        files = {folder / name: content for name, content in (contents if copies is None else copies).items()}
        task = Background(lambda task: _write(files, task), name=f"checkpoint {state.step}")
        meta = {"step": state.step, **deepcopy(self.metadata)}
        if self._position is not None:
            meta["position"] = self._position(state.step)
        self._save = _Save(state.step, meta, folder, task, start, time.monotonic() - start)
        self.last = state.step
        if copies is None:
            task.work()
            self._save.stall_seconds = time.monotonic() - start
        else:
            task.start()
        if self._is_blocking:
            self.finish()

    def poll(self) -> None:
        """Commit the checkpoint in progress if every rank has written its files, without waiting.

        Raises:
            Lease.Held: another trainer has taken over the store.
            UserError: a rank could not write its file; earlier checkpoints are intact.
        """
        if self._save is None:
            return
        task = self._save.task
        flags = torch.tensor([int(task.is_alive()), int(task.error is not None)], dtype=torch.int32)
        is_alive, has_failed = self.group.all_reduce_(flags, op="max").tolist()
        if has_failed:
            self._fail(self._save)
        elif not is_alive and not self._save.is_committing:
            self._commit(self._save)
        elif not is_alive:
            self._end(self._save)

    def finish(self) -> None:
        """Wait for the checkpoint in progress; raises like `poll`."""
        while self._save is not None:
            self._save.task.wait()
            self.poll()

    def abandon(self) -> None:
        """Drop the checkpoint in progress on this rank only, if any."""
        if self._save is not None:
            self._save.task.cancel()
            if self.group.rank == 0:
                self.store.discard(self._save.folder)
            log.warning(f"abandoning the unfinished checkpoint of step {self._save.step}")
            self._save = None

    def _finish_previous(self) -> None:
        if self._save is None:
            return
        step, start = self._save.step, time.monotonic()
        self.finish()
        delay = time.monotonic() - start
        if self.group.rank == 0:
            self.store.event("waited for a checkpoint", step=step, seconds=round(delay, 3))
        log.info(f"waited {delay:.1f} s for the checkpoint of step {step} before the next: the disk limits their rate")

    def _is_lease_lost(self) -> bool:
        return self.lease is not None and not self.lease.holds()

    def _lease_error(self, step: int) -> UserError:
        return Lease.Held(
            user_error(
                f"the lease of {self.store.folder} was lost before the checkpoint of step {step}",
                got="another trainer, or a lease file that was removed",
                expected="the lease of this process",
                fix="no action: the other trainer continues from the last checkpoint",
            )
        )

    def _contents(self, state: ModuleState) -> dict[str, TensorFile]:
        pieces = state.pieces()
        if self._share is None:
            sizes = {key_of(file, piece): piece.values.nbytes for file, parts in pieces.items() for piece in parts}
            self._share = assign_pieces(self.group.gather_objects(sizes))[self.group.rank]
        return {
            shard_name(file, self.group.rank, self.group.size): TensorFile.of(
                (piece for piece in parts if key_of(file, piece) in self._share),
                metadata=dict(state.kind),
            )
            for file, parts in pieces.items()
        }

    def _commit(self, save: _Save) -> None:
        """Commit the complete files on rank 0 and remove old checkpoints, in the background."""
        save.work_seconds += save.task.seconds
        entries = [entry for rank_entries in self.group.gather_objects(save.task.result) for entry in rank_entries]
        save.is_committing = True

        def commit(_: Background) -> None:
            if self._is_lease_lost():
                raise self._lease_error(save.step)
            self.store.commit(save.step, save.folder, files=entries, meta=save.meta)
            if not self._is_lease_lost():  # all ranks detect it at the next checkpoint
                self.store.prune(saved=save.step, keep_last=self._keep_last, keep_every=self._keep_every)

        save.task = Background(commit, name=f"commit {save.step}")
        if self.group.rank == 0:
            save.task.start()

    def _end(self, save: _Save) -> None:
        self._save = None
        seconds = time.monotonic() - save.start
        self.timer.save(save.stall_seconds + save.work_seconds + save.task.seconds)
        self.timer.stall(save.stall_seconds, write_seconds=seconds - save.stall_seconds)
        if self.group.rank == 0:
            times = {"seconds": round(seconds, 3), "stalled_seconds": round(save.stall_seconds, 3)}
            self.store.event("checkpoint", step=save.step, **times)
        log.info(
            f"checkpoint of step {save.step} written to {self.store.path(save.step)} in {seconds:.1f} s; training "
            f"waited {save.stall_seconds:.2f} s"
        )

    def _fail(self, save: _Save) -> None:
        self._save = None
        save.task.cancel()
        error = None if isinstance(save.task.error, Canceled) else save.task.error
        if not isinstance(error, OSError | UserError | None):
            log.error(f"a part of the checkpoint of step {save.step} could not be written", exc_info=error)
        errors = self.group.gather_objects(error if isinstance(error, OSError | UserError | None) else repr(error))
        if self.group.rank == 0:
            self.store.discard(save.folder)
        if self.group.any(self._is_lease_lost()):  # the other trainer has removed the incomplete folder
            raise self._lease_error(save.step)
        if user_errors := [error for error in errors if isinstance(error, UserError)]:
            raise user_errors[0]
        reasons = [f"rank {rank}: {error}" for rank, error in enumerate(errors) if error is not None]
        raise self.store.unwritten(save.step, "; ".join(reasons))


def _write(files: dict[Path, TensorFile], task: Background) -> list[dict[str, Any]]:
    entries = []
    for path, content in files.items():
        try:
            entries.append(write_file(path, content, check=task.check))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    return entries
