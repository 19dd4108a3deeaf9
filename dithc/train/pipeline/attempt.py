"""One attempt at a training job on this rank: all parts of the run, and the loop over steps with checkpoints."""

import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from dithc.config import MachineConfig, training
from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import get_logger, user_error
from dithc.core.processes import STOPPED
from dithc.diffusion import Objective
from dithc.engine.cftp import ThreadTeam
from dithc.engine.comm import Group
from dithc.engine.numa import peak_rss_bytes, place_pages
from dithc.engine.scheduler import deadline
from dithc.latents import Batches, Latents
from dithc.model import DiT
from dithc.train.checkpoints import CheckpointWriter, TrainingState, checkpoint_metadata, initial_state
from dithc.train.job import DONE, StepTimer, StopRequests, TrainingJob, hold_lease
from dithc.train.local_updates import Interrupted, LocalUpdates
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.monitoring import RankWatch, TrainingLog, Validation, Values, log_attempt
from dithc.train.pipeline.initial_weights import fit_gaussian, init_model, start_from_file, start_from_run
from dithc.train.pipeline.memory_check import allocation_guard
from dithc.train.step import (
    BatchSource,
    NonFiniteError,
    Recovery,
    SkippedSteps,
    Trainer,
    prepare_strategy,
)
from dithc.train.strategies import RankGrid, Strategy, make_rank_grid

log = get_logger(__name__)
# Metrics of a step without an update.
NO_UPDATE: Values = dict.fromkeys(("loss", "mse", "vb", "grad_norm", "lr", "ema_decay"))


class Attempt:
    """A job between inputs and manifest, under the lease of its store; `stack` ends all parts."""

    def __init__(
        self, job: TrainingJob, group: Group, store: CheckpointStore, memory: TrainingMemory, stack: ExitStack
    ) -> None:
        self.job, self.group, self.store = job, group, store
        run, machine = job.run, job.machine
        lease = hold_lease(store, group, stack)
        self.stop = stack.enter_context(StopRequests(walltime_minutes=job.walltime_minutes))
        stack.enter_context(log_attempt(store) if group.rank == 0 else nullcontext())
        latents = Latents(job.paths.latents.parent)
        source = Batches(
            latents,
            seed=job.seed,
            global_batch_size=run.global_batch_size,
            label_dropout=run.label_dropout,
            augment=run.augment,
            times=Objective.of(run.objective).times,
            masked=run.masked_training,
            conditions=run.conditions,
            groups=list(run.band_groups.values()),
            worker=(0, 1)
            if (local := run.local_updates) is None
            else (local.workers.index(job.name), len(local.workers)),
        )
        layout = make_rank_grid(group, machine.rank_strategy, stages=machine.pipeline_stages)
        share = -(-run.global_batch_size // layout.data_size)
        tokens = latents.shape[-1] * latents.shape[-2] // run.model.patch**2
        images = min(run.micro_batch_size or share, share)
        stack.enter_context(allocation_guard(job, tokens=tokens, images=images, memory=memory))
        model = _initial_model(job, latents, group)
        metadata = checkpoint_metadata(job, model=model, latents=latents, layout=layout)
        self.trainer = trainer_of(run, machine, group, source, model=model, layout=layout, memory=memory)
        self.state = self.trainer.state
        memory.follow(self.state, store=store if group.rank == 0 else None)
        self.timer = StepTimer()
        self.saver = CheckpointWriter(
            store,
            lease=lease,
            group=group,
            metadata=metadata,
            timer=self.timer,
            keep_last=run.keep_last,
            keep_every=run.kept_every,
            position=lambda step: {"sample": step * run.global_batch_size, "epoch": source.epoch(step)},
            mode=machine.checkpoint_mode,
        )
        stack.callback(self.saver.abandon)
        self.rounds: LocalUpdates | None = None
        if run.local_updates is not None:
            self.rounds = LocalUpdates(
                job, group, self.state, store, metadata=metadata, stop_reason=self._waiting_stop_reason
            )
            stack.callback(self.rounds.close)
        self._is_interrupted = self._has_advanced = self._saves_early = False
        self._saved_at = time.monotonic()
        self._resume()
        _place(self.state, memory)
        skipped = SkippedSteps(store, group)
        metadata["skipped_steps"] = skipped.steps
        self.recovery = Recovery(run.on_nonfinite, skipped=skipped, roll_back=self._roll_back)
        self.validation = Validation(run, latents, seed=job.seed, state=self.state, group=group, memory=memory)
        journal = TrainingLog(store, job=job, first=self.state.step, epochs=source.epoch, rank=group.rank)
        self.journal = stack.enter_context(journal)
        self.watch = stack.enter_context(RankWatch(group, machine, trainer=self.trainer, store=store))

    def run(self) -> int:
        """Train to the last step of the job and save the last state.

        A stop request on any rank stops all ranks between two steps. The walltime is checked after the first step, so
        that restarts make progress. A rank that hangs in a step ends all ranks, after a timeout derived from earlier
        steps.

        Returns:
            DONE or STOPPED, the same on every rank.

        Raises:
            NonFiniteError: a number is not finite and the policy does not help; the last checkpoint is intact.
            UserError: the disk is full; the last checkpoint is intact.
            Lease.Held: another trainer has taken over.
        """
        state, until, group = self.state, self.job.until, self.group
        is_unsaved = self._lacks_last_round  # a checkpoint from before the last round, which is finished now
        while state.step < until or self._lacks_last_round:
            group.wait_at_most(self.timer.timeout_seconds())
            if group.any((reason := self._stop_reason()) is not None or self._is_interrupted):
                log.warning(f"stopping after step {state.step} of {until}: {reason or 'requested on another rank'}")
                break
            self.saver.poll()
            if state.step < until:
                self._has_advanced |= self._advance(state.step + 1)
            else:
                self._finish_round(until)
        self._extend_timeout()
        is_done = state.step >= until and not self._lacks_last_round
        if (self.saver.last != state.step or (is_unsaved and is_done)) and self._is_finite(state.step):
            self._save()
        self.saver.finish()
        status = DONE if is_done else STOPPED
        if group.rank == 0:
            if status == DONE:
                self.store.pin(until)  # before another trainer can take the lease and prune
            else:
                deadline.mark_again(f"step {state.step}")
                deadline.exclude(self.watch.excluded)
            self.store.event("stopped" if status == STOPPED else "done", step=state.step)
        return status

    def _stop_reason(self) -> str | None:
        grace = self.timer.grace_seconds if self._has_advanced else None
        return self.stop.reason(grace_seconds=grace) or self.watch.stop_reason()

    def _waiting_stop_reason(self) -> str | None:
        return self.stop.reason(grace_seconds=self.timer.grace_seconds)

    @property
    def _lacks_last_round(self) -> bool:
        """True if all steps of the job are done, but not the last round of local updates."""
        return self.state.step >= self.job.until and self._ends_round(self.job.until)

    def _advance(self, number: int) -> bool:
        """Run step `number` with its records and checkpoint; return False after a recovery or interruption instead."""
        is_kept = number % self.job.run.checkpoint_every == 0 or number == self.job.until
        self._finish_round(number - 1)
        if self._is_interrupted:
            return False
        try:
            values = self._step(number)
            is_kept |= self._saves_early
            if is_kept or self._ends_round(number):
                self.trainer.check_weights(number)
        except NonFiniteError as error:
            self._recover(error)
            self.journal.rewind(self.state.step)
            return False
        values |= self._finish_round(number)
        if self.validation.is_due(number, until=self.job.until) and not self._is_interrupted:
            self._extend_timeout()
            values |= self.validation.values(self.timer)
        self.state.step = number
        self.journal.step(number, values)
        if is_kept:
            self._extend_timeout()
            self._save()
        return True

    def _save(self) -> None:
        if self.rounds is not None:
            self.rounds.flush()
            self.saver.metadata["unfinished_round"] = self._lacks_last_round
        self.saver.save(self.state)
        self._saved_at = time.monotonic()

    def _ends_round(self, step: int) -> bool:
        return self.rounds is not None and self.rounds.is_due(step)

    def _finish_round(self, step: int) -> Values:
        """Finish the round of local updates that ends with a step, if any, unless a stop request interrupts it."""
        if self.rounds is None or not self.rounds.is_due(step):
            return {}
        self._extend_timeout()
        try:
            return {**self.rounds.finish(is_last=step == self.job.until)}
        except Interrupted:
            self._is_interrupted = True
            return {}

    def _step(self, number: int) -> Values:
        """Make a step, or skip it if it was dropped before; return its metrics."""
        start = time.perf_counter()
        is_skipped = number in self.recovery.skipped.steps
        values: Values = NO_UPDATE | {"skipped_steps": 1.0} if is_skipped else {**self.watch.step(number)}
        seconds = time.perf_counter() - start
        if not is_skipped:
            self.timer.step(seconds)
        data_seconds = values.get("data_seconds") or 0.0
        local = torch.tensor([peak_rss_bytes(), data_seconds, self._is_save_due()], dtype=torch.float64)
        peak, data_seconds, is_save_due = self.group.all_reduce_(local, op="max").tolist()
        self._saves_early = bool(is_save_due)
        values["data_seconds"] = None if is_skipped else data_seconds
        values["step_seconds"] = seconds
        waited = sum(values.get(name) or 0.0 for name in ("exposed_seconds", "stage_seconds"))
        values["compute_seconds"] = None if is_skipped else seconds - waited
        values["images_per_second"] = None if is_skipped else self.job.run.global_batch_size / seconds
        values["peak_rss_bytes"] = peak
        return values

    def _is_save_due(self) -> bool:
        """Return whether this rank requests a checkpoint because of `machine.hours_between_failures`."""
        hours = self.job.machine.hours_between_failures
        interval = None if hours is None else self.timer.save_interval(3600 * hours)
        return interval is not None and time.monotonic() - self._saved_at > interval

    def _is_finite(self, number: int) -> bool:
        """Return whether the weights after step `number` are finite; recover otherwise."""
        try:
            self.trainer.check_weights(number)
        except NonFiniteError as error:
            self._recover(error)
            return False
        return True

    def _recover(self, error: NonFiniteError) -> None:
        """Apply the policy for steps that are not finite: restore the state of a checkpoint, or raise."""
        self._extend_timeout()
        self.saver.finish()
        self.recovery.handle(error)

    def _extend_timeout(self) -> None:
        self.group.wait_at_most(self.timer.timeout_seconds(saving=True))

    def _load(self, *, at_most: int) -> bool:
        allow = self.job.machine.allow_checkpoint_rollback
        return self.saver.resume(self.state, at_most=at_most, allow_checkpoint_rollback=allow)

    def _resume(self) -> None:
        """Load the newest complete checkpoint, or save step 0."""
        start = time.monotonic()
        if self.group.rank == 0:
            self.store.sweep()
            self.store.describe(self.job.spec)
        if self._load(at_most=self.job.until):
            self.timer.save(time.monotonic() - start)
        else:
            self._save()
        if self.group.rank == 0:
            sizes = {"ranks": self.group.size, "threads": self.saver.metadata["threads"]}
            self.store.event("started", step=self.state.step, until=self.job.until, **sizes)

    def _roll_back(self) -> int:
        """Load the newest complete checkpoint into the state of a resumed run; return its step."""
        current = self.state.step
        if not self._load(at_most=current):
            raise user_error(
                f"roll-back from step {current}: no complete checkpoint in {self.store.folder}",
                got=f"damaged or removed checkpoints of steps {self.store.steps()}",
                expected="at least one intact checkpoint",
                fix="start again: without a checkpoint, training restarts at step 0",
            )
        return self.state.step


def _initial_model(job: TrainingJob, latents: Latents, group: Group) -> DiT:
    run = job.run
    given: dict[str, Any] = {"conditions": latents.widths(run.conditions), "groups": latents.channels(run.band_groups)}
    model = init_model(run, shape=latents.shape, num_classes=latents.num_classes, seed=job.seed, **given)
    if model.gaussian is not None:
        fit_gaussian(model, latents, group)
    if job.paths.init is not None:
        start_from_run(model, job.paths.init, weights=run.init_weights, latents=latents)
    elif run.init_from_file is not None:
        start_from_file(model, Path(run.init_from_file), weights=run.init_weights)
    return model


def trainer_of(
    run: training.RunConfig,
    machine: MachineConfig,
    group: Group,
    source: BatchSource,
    *,
    model: DiT,
    layout: RankGrid,
    memory: TrainingMemory,
) -> Trainer:
    """Return the trainer of a model on a group, with the state at step 0."""
    strategy = Strategy(memory.wrap(model, run), layout, gradients=machine.gradient_sync, sharding=machine.sharding)
    with memory.paused():
        prepare_strategy(strategy, source, run)
    state = initial_state(model, run, strategy, allocate=memory.allocator)
    return Trainer(run=run, source=source, state=state, group=group, memory=memory)


def _place(state: TrainingState, memory: TrainingMemory) -> None:
    """Place weights, average, moments and gradients near their cores, on huge pages; tiers place their own."""
    team = ThreadTeam.of()
    log.info(team.describe())
    weights = list(state.model.parameters())
    gradients = [weight.flat_grad for weight in weights if hasattr(weight, "flat_grad")]
    tensors = [*weights, *state.ema.state.values(), *state.optimizer.state().values(), *gradients]
    place_pages((tensor.detach() for tensor in tensors if not memory.holds(tensor)), nodes=team.nodes)
