"""Output of a run: metrics, progress, log lines, and a log of each attempt in the store."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import MetricsWriter, get_logger, progress, unwritten
from dithc.train.job import TrainingJob

# Metrics of a step by name; None if a metric has no value.
Values = dict[str, float | None]
METRICS_FOLDER = "metrics"
ATTEMPTS_FOLDER = "attempts"
log = get_logger(__name__)


class TrainingLog:
    """Rank 0's record of a job's steps: progress, log lines, and metrics in the store; silent on other ranks.

    `epochs` returns the number of passes over the data after a step.
    """

    def __init__(
        self, store: CheckpointStore, *, job: TrainingJob, first: int, epochs: Callable[[int], float], rank: int
    ) -> None:
        self._store, self._run, self._name = store, job.run, job.name
        self._first, self._until, self._epochs, self._rank = first, job.until, epochs, rank
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        label, is_quiet = f"train {self._name}", self._rank > 0
        bar = progress(total=self._until, done=self._first, label=label, unit="step", quiet=is_quiet)
        self._bar = self._stack.enter_context(bar)
        self._open_metrics(self._first)
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._stack.close()

    def rewind(self, number: int) -> None:
        """Rewind to `number`: records of later steps are replaced."""
        if number == self._last:
            return
        self._bar.update(number - self._last)
        if self._metrics is not None:
            self._metrics.close()
        self._open_metrics(number)

    def _open_metrics(self, number: int) -> None:
        self._metrics = MetricsWriter(self._store.folder / METRICS_FOLDER, after=number) if self._rank == 0 else None
        self._last = number

    def step(self, number: int, values: Values) -> None:
        """Record the values of a step; raises UserError if the disk is full or not writable."""
        epoch = f"{self._epochs(number):.1f}"
        is_skipped = values["loss"] is None
        self._last = number
        self._bar.update(1, epoch=epoch, loss="skipped" if is_skipped else f"{values['loss']:.4f}")
        if self._metrics is None:
            return
        try:
            self._metrics.write(number, **values)
        except OSError as error:
            fix = "free space, then start again: training continues from the last complete checkpoint"
            folder = self._store.folder / METRICS_FOLDER
            raise unwritten(f"metrics of step {number}", folder, error, fix=fix) from error
        if is_skipped:
            log.info(f"step {number}/{self._until}, epoch {epoch}: skipped, because its numbers were not finite")
        elif number % self._run.log_every == 0 or number == self._until:
            log.info(
                f"step {number}/{self._until}, epoch {epoch}: loss {values['loss']:.4f} "
                f"(mse {values['mse']:.4f}, vb {values['vb']:.4f}), gradient norm {values['grad_norm']:.3f}, "
                f"lr {values['lr']:.2e}, {values['step_seconds']:.2f} s, {values['images_per_second']:.1f} images/s"
            )
        if (held_out := values.get("val_loss")) is not None:
            log.info(f"step {number}/{self._until}: mse {held_out:.4f} on held-out tiles")


@contextmanager
def log_attempt(store: CheckpointStore) -> Iterator[None]:
    """Copy the log to `attempts/<time>-<host>-<process>.log` of the store while a `with` block runs.

    The workflow engine deletes the log of an attempt before the next one.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{socket.gethostname()}-{os.getpid()}.log"
    folder = store.folder / ATTEMPTS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / name, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("dithc").addHandler(handler)
    try:
        yield
    except BaseException as error:
        handler.handle(logging.LogRecord("dithc.train", logging.ERROR, __file__, 0, f"ended by {error}", None, None))
        raise
    finally:
        logging.getLogger("dithc").removeHandler(handler)
        handler.close()
