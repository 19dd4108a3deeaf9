"""The loop: steps until the last one, or until a rank is asked to stop; checkpoints on the way."""

import time

import torch

from dithc.comm import Group
from dithc.log import logger
from dithc.memory import peak_rss_bytes
from dithc.train.checkpoint import Saver, State
from dithc.train.job import DONE, STOPPED
from dithc.train.journal import Journal
from dithc.train.step import Trainer
from dithc.train.stop import Pace, Stop

log = logger(__name__)


def loop(
    trainer: Trainer,
    state: State,
    *,
    until: int,
    saver: Saver,
    journal: Journal,
    stop: Stop,
    pace: Pace,
    group: Group,
) -> int:
    """Trains from `state.step` to step `until`; the state of the step it ends at is saved.

    A request to stop on any rank stops all of them between two steps. The end of the walltime is heeded after the first
    step only, so that a job that starts again and again gets on.

    Returns:
        DONE or STOPPED, the same on every rank.

    Raises:
        UserError: a number is not finite, or the disk is full; the last checkpoint is intact.
        Lease.Held: another trainer has taken over.
    """
    first = state.step
    while state.step < until:
        reason = stop.reason(grace_seconds=pace.grace_seconds if state.step > first else None)
        if group.any(reason is not None):
            log.warning(f"stopping after step {state.step} of {until}: {reason or 'asked on another rank'}")
            break
        begun = time.perf_counter()
        values = trainer.step(state.step + 1)
        seconds = time.perf_counter() - begun
        state.step += 1
        pace.step(seconds)
        peak = group.all_reduce_(torch.tensor([peak_rss_bytes()], dtype=torch.float64), op="max")
        values["step_seconds"] = seconds
        values["images_per_second"] = trainer.run.global_batch / seconds
        values["peak_rss_bytes"] = peak.item()
        journal.step(state.step, values)
        if state.step % trainer.run.checkpoint_every == 0:
            saver.save(state)
    if saver.last != state.step:
        saver.save(state)
    return DONE if state.step >= until else STOPPED
