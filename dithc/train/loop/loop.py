"""Loop over steps until the last step or a stop request, with checkpoints."""

import time

import torch

from dithc.comm import Group
from dithc.log import logger
from dithc.pages import peak_rss_bytes
from dithc.train.checkpoints import Saver, State
from dithc.train.job import DONE, STOPPED, Pace, Stop
from dithc.train.loop.journal import Journal, Values
from dithc.train.loop.trace import Tracer
from dithc.train.loop.validate import Validation
from dithc.train.step import NotFinite, Recovery, Trainer

log = logger(__name__)
# Metrics of a step without an update.
NOTHING: Values = dict.fromkeys(("loss", "mse", "vb", "grad_norm", "lr", "ema_decay"))


def loop(
    trainer: Trainer,
    state: State,
    *,
    until: int,
    saver: Saver,
    journal: Journal,
    validation: Validation,
    recovery: Recovery,
    tracer: Tracer,
    stop: Stop,
    pace: Pace,
    group: Group,
) -> int:
    """Train from `state.step` to step `until` and save the last state.

    A stop request on any rank stops all ranks between two steps. The walltime is checked after the first step, so that
    restarts make progress. `recovery` handles steps that are not finite. A rank that hangs in a step ends all ranks,
    after a timeout derived from earlier steps.

    Returns:
        DONE or STOPPED, the same on every rank.

    Raises:
        NotFinite: a number is not finite and the policy does not help; the last checkpoint is intact.
        UserError: the disk is full; the last checkpoint is intact.
        Lease.Held: another trainer has taken over.
    """
    has_moved = False
    while state.step < until:
        group.wait_at_most(pace.patience_seconds())
        reason = stop.reason(grace_seconds=pace.grace_seconds if has_moved else None)
        if group.any(reason is not None):
            log.warning(f"stopping after step {state.step} of {until}: {reason or 'requested on another rank'}")
            break
        saver.poll()
        number = state.step + 1
        is_kept = number % trainer.run.checkpoint_every == 0 or number == until
        with tracer.step(number, trainer):
            try:
                values = _step(trainer, number, recovery=recovery, pace=pace, group=group)
                if is_kept:
                    trainer.check_weights(number)
            except NotFinite as error:
                group.wait_at_most(pace.patience_seconds(saving=True))
                saver.finish()
                recovery.after(error)
                journal.back_to(state.step)
                continue
            if validation.is_due(number, until=until):
                group.wait_at_most(pace.patience_seconds(saving=True))
                with trainer.span("validation"):
                    values |= validation.values(pace)
            state.step, has_moved = number, True
            journal.step(number, values)
            if is_kept:
                group.wait_at_most(pace.patience_seconds(saving=True))
                with trainer.span("checkpoint"):
                    saver.save(state)
    group.wait_at_most(pace.patience_seconds(saving=True))
    if saver.last != state.step:
        try:
            trainer.check_weights(state.step)
        except NotFinite as error:
            saver.finish()
            recovery.after(error)  # this restores the state of a checkpoint, or raises
        else:
            saver.save(state)
    saver.finish()
    return DONE if state.step >= until else STOPPED


def _step(trainer: Trainer, number: int, *, recovery: Recovery, pace: Pace, group: Group) -> Values:
    """Make a step, or skip it if it was dropped before; return its metrics."""
    begun = time.perf_counter()
    is_left_out = number in recovery.left_out.steps
    values: Values = NOTHING | {"left_out": 1.0} if is_left_out else {**trainer.step(number)}
    seconds = time.perf_counter() - begun
    if not is_left_out:
        pace.step(seconds)
    of_slowest = torch.tensor([peak_rss_bytes(), values.get("data_seconds") or 0.0], dtype=torch.float64)
    peak, waited = group.all_reduce_(of_slowest, op="max").tolist()
    values["data_seconds"] = None if is_left_out else waited
    values["step_seconds"] = seconds
    values["compute_seconds"] = None if is_left_out else seconds - (values.get("exposed_seconds") or 0.0)
    values["images_per_second"] = None if is_left_out else trainer.run.global_batch / seconds
    values["peak_rss_bytes"] = peak
    return values
