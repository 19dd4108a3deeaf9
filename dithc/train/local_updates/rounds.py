"""End of a round of local updates on all ranks of a worker: publish, wait for the other workers, set the new weights.

With overlap, round r ends with the update of this worker in r and the updates of the others in r - 1, so that an exchange has
a round of steps to finish. The sum over all rounds is the same as without overlap. The last round of a job waits for all
updates, and then for the mean of all weights and averages.

Legend: n trained weights.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import get_logger, user_error
from dithc.engine.comm import Group
from dithc.train.checkpoints import TrainingState
from dithc.train.job import TrainingJob, run_once
from dithc.train.local_updates import encoding
from dithc.train.local_updates.exchange import Exchange, Tensors
from dithc.train.local_updates.shared_folder import SharedFolder
from dithc.train.optimizer import OuterState

UPDATES, WEIGHTS, AVERAGES = "updates", "weights", "ema"
LONGEST_PAUSE = 0.2  # seconds between two checks for a stop request
REPORT_SECONDS = 30.0
log = get_logger(__name__)


class Interrupted(Exception):
    """A stop was requested while the worker waited; the round is not finished."""


def _root(job: TrainingJob) -> Path:
    return Path(job.machine.exchange_folder or job.paths.store / "exchange")


class LocalUpdates:
    """Rounds of a worker; `stop_reason` returns the reason of this rank to stop waiting, or None."""

    def __init__(
        self,
        job: TrainingJob,
        group: Group,
        state: TrainingState,
        store: CheckpointStore,
        *,
        metadata: Mapping[str, Any],
        stop_reason: Callable[[], str | None],
    ) -> None:
        """Prepare the rounds of a run with `local_updates`, before a checkpoint is loaded; collective.

        `metadata` of its checkpoints identifies codec and network. UserError if the folder cannot be written.
        """
        assert job.run.local_updates is not None
        self.settings, self._state, self._stop_reason = job.run.local_updates, state, stop_reason
        self._group, self._store = group, store
        self._others = [name for name in self.settings.workers if name != job.name]
        state.strategy.wait_for_weights()
        self._outer = state.outer = OuterState(state.model, self.settings, is_first_rank=group.rank == 0)
        self._exchange: Exchange | None = None
        self._buffer: Tensor | None = None
        self._kept = min(job.run.keep_last, 2)  # newest checkpoints that a restart may use
        self._folder: SharedFolder | None = None  # of rank 0
        run_once(group, lambda: self._open(job, metadata))
        others = ", ".join(self._others)
        log.info(f"worker {job.name} exchanges updates with {others} every {self.settings.steps} steps in {_root(job)}")

    def _open(self, job: TrainingJob, metadata: Mapping[str, Any]) -> None:
        root, workers = _root(job), self.settings.workers
        if job.machine.exchange_folder is not None and not root.is_dir():
            raise user_error(
                f"machine.exchange_folder {root}",
                got="no such folder",
                expected="a folder that all workers can write",
                fix="create it, or mount its file system",
            )
        start = hashlib.sha256(self._outer.tensors["start"].numpy().data).hexdigest()
        identity = {key: metadata[key] for key in ("codec", "latent", "model")} | {"spec": job.spec, "start": start}
        steps = {"steps": job.run.steps, "steps_per_job": job.run.segment_steps}
        self._folder = SharedFolder(root, workers, worker=job.name, identity=identity, description=steps)

    def is_due(self, step: int) -> bool:
        """Return whether the round that ends with `step` is not finished."""
        return step // self.settings.steps > self._outer.round or self._outer.lacks_average

    def finish(self, *, is_last: bool = False) -> dict[str, float]:
        """Finish the round and set the new weights; collective. `is_last` in a job: equal weights on all workers.

        Returns:
            `exchange_seconds`, the time of this method, and its part `exchange_wait_seconds`, the wait for other workers.

        Raises:
            Interrupted: a stop was requested on any rank.
            UserError: an update cannot be written, or is not of this network.
        """
        outer, begin = self._outer, time.perf_counter()
        is_last |= outer.lacks_average
        self._state.strategy.wait_for_weights()
        wait_seconds = 0.0 if outer.lacks_average else self._add_updates(waits=is_last or not self.settings.overlap)
        outer.lacks_average = is_last
        if is_last:
            start = time.perf_counter()
            self._average()
            wait_seconds += time.perf_counter() - start
        outer.lacks_average = False
        self._set_weights()
        return {"exchange_seconds": time.perf_counter() - begin, "exchange_wait_seconds": wait_seconds}

    def _add_updates(self, *, waits: bool) -> float:
        """Exchange the updates of the round, and make the outer step on rank 0; return the seconds of waiting."""
        outer, start = self._outer, time.perf_counter()
        number, late = outer.round + 1, None
        if outer.is_pending:
            self._begin(UPDATES, outer.round, workers=self._others)
            late = self._sums().get(UPDATES)
        wait_seconds = time.perf_counter() - start
        if self._folder is not None:
            weights = self._gather_weights()
            own = self._folder.own(UPDATES, number) or self._encoded(weights)
            self._begin(UPDATES, number, own=own, workers=self.settings.workers if waits else self._others)
        start = time.perf_counter()
        total = self._sums().get(UPDATES) if waits else None
        wait_seconds += time.perf_counter() - start
        if self._folder is not None:
            self._step(weights, own, total=total, late=late)
        outer.round, outer.is_pending = number, not waits
        return wait_seconds

    def flush(self) -> None:
        """Wait until the update of the last round is published, before a checkpoint that contains the round; collective."""
        run_once(self._group, lambda: None if self._exchange is None else self._exchange.published.wait())
        self._raise_error()

    def close(self) -> None:
        """End the thread of an exchange, on this rank."""
        if self._exchange is not None:
            self._exchange.cancel()

    def _begin(self, name: str, number: int, *, workers: Sequence[str], own: Tensors | None = None) -> None:
        """Start an exchange on rank 0, unless it is in progress."""
        if self._folder is None or (
            self._exchange is not None and self._exchange.key == (name, number, tuple(workers))
        ):
            return
        self.close()
        # A checkpoint that was written during a wait lacks the last round before its step.
        saved = max(0, min(self._store.steps()[-self._kept :], default=0) // self.settings.steps - 1)
        add = self._add_update if name == UPDATES else self._add_weights
        self._exchange = Exchange(self._folder, name, number, own=own, workers=workers, saved=saved, add=add)

    def _sums(self) -> dict[str, Tensor]:
        """Wait for the exchange in progress; return its sums on rank 0, no tensors on other ranks. Collective."""
        exchange, start, pause, reports = self._exchange, time.monotonic(), 0.001, 1
        while self._group.any(exchange is not None and exchange.is_alive()):
            if self._group.any(self._stop_reason() is not None):
                raise Interrupted
            if exchange is not None:
                exchange.join(pause := min(2 * pause, LONGEST_PAUSE))
                if (seconds := time.monotonic() - start) > reports * REPORT_SECONDS and self._folder is not None:
                    reports += 1
                    name, number, _ = exchange.key
                    reason = self._folder.reason(exchange.missing, name, number)
                    log.warning(f"waiting {seconds:.0f} s for {name} of round {number}: {reason}")
        self._raise_error()
        self._exchange = None  # a repeated round adds its sums again
        return {} if exchange is None else exchange.sums

    def _raise_error(self) -> None:
        """Raise the error of the exchange on all ranks."""

        def check() -> None:
            if self._exchange is not None and self._exchange.error is not None:
                raise self._exchange.error

        run_once(self._group, check)

    def _gather_weights(self) -> Tensor:
        """Return the trained weights of this rank in a buffer that all rounds use, fp32 (n)."""
        if self._buffer is None:
            self._buffer = torch.empty_like(self._outer.tensors["start"])
        weights = self._named()
        for name, part in self._named(self._buffer).items():
            part.copy_(weights[name])
        return self._buffer

    def _encoded(self, weights: Tensor) -> dict[str, Tensor]:
        """Return the rounded update of this worker."""
        tensors = encoding.empty(len(weights), self.settings.dtype)
        for part in encoding.chunks(len(weights)):
            encoding.encode(self._outer.update(weights[part], part), tensors, part)
        return tensors

    def _step(self, weights: Tensor, own: Tensors, *, total: Tensor | None, late: Tensor | None) -> None:
        """Make the outer step with the sum of the updates of a round, of this worker alone if None, and late updates."""
        for part in encoding.chunks(len(weights)):
            sent = encoding.decode(own, part)
            error = self._outer.update(weights[part], part).sub_(sent)
            updates = sent if total is None else total[part]
            self._outer.step(updates if late is None else updates.add_(late[part]), part, error=error)

    def _add_update(self, tensors: Tensors, sums: dict[str, Tensor]) -> None:
        size = len(self._outer.tensors["start"])
        encoding.check(tensors, self.settings.dtype, size=size)
        total = sums.setdefault(UPDATES, torch.zeros(size))
        for part in encoding.chunks(size):
            total[part] += encoding.decode(tensors, part)

    def _add_weights(self, tensors: Tensors, sums: dict[str, Tensor]) -> None:
        """Add weights and averages, fp32 (n) each."""
        size = len(self._outer.tensors["start"])
        for name in (WEIGHTS, AVERAGES):
            values = {"values": tensors[name]} if name in tensors else {}
            encoding.check(values, "fp32", size=size)
            sums.setdefault(name, torch.zeros(size)).add_(values["values"])

    def _average(self) -> None:
        """Set the mean weights of all workers on rank 0, and the mean averages on all ranks."""
        count, ema = len(self.settings.workers), self._state.ema
        own = self._complete(ema.state)
        if self._folder is not None:
            tensors = {WEIGHTS: self._outer.tensors["start"], AVERAGES: own}
            self._begin(WEIGHTS, self._outer.round, own=tensors, workers=self.settings.workers)
        sums = self._sums()
        if self._folder is not None:
            torch.div(sums[WEIGHTS], count, out=self._outer.tensors["start"])
        flat = self._group.broadcast_(sums[AVERAGES].div_(count) if sums else own)
        ema.load(ema.state | self._named(flat))

    def _complete(self, averages: Mapping[str, Tensor]) -> Tensor:
        """Return the averages of all trained weights, fp32 (n), also if ranks share them; collective."""
        flat = torch.cat([part.reshape(-1) for part in self._named().values()]).zero_()
        for name, part in self._named(flat).items():
            sharded = self._state.strategy.sharded_state
            if name in averages:
                (part if sharded is None else sharded.cut(name, part)).copy_(averages[name])
        return flat if self._state.strategy.sharded_state is None else self._group.all_reduce_(flat)

    def _set_weights(self) -> None:
        """Set the weights of all ranks to those at the start of the next round."""
        weights = self._named()
        start = self._outer.tensors.get("start")
        size = sum(weight.numel() for weight in weights.values())
        flat = self._group.broadcast_(torch.empty(size) if start is None else start)
        for name, value in self._named(flat).items():
            weights[name].copy_(value)
        self._state.strategy.load_from_module()

    def _named(self, flat: Tensor | None = None) -> dict[str, Tensor]:
        """Return the trained weights by name, or views of flat weights (n)."""
        weights = {name: value.detach() for name, value in self._state.model.named_parameters() if value.requires_grad}
        if flat is None:
            return weights
        parts = torch.split(flat, [weight.numel() for weight in weights.values()])
        return {name: part.view(weight.shape) for part, (name, weight) in zip(parts, weights.items(), strict=True)}
