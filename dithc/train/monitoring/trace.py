"""Trace of one step on request: operators, phases, communication thread, for ui.perfetto.dev or chrome://tracing."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from dithc.core.artifacts import CheckpointStore, atomic_replace
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger
from dithc.engine.comm import Group, traffic
from dithc.train.job import TrainingJob
from dithc.train.step import Trainer

TRACES_FOLDER = "traces"
CLOCK = "dithc clock"
# A thread may lose its core between two reads. The fastest of this number of reads of both clocks counts.
CLOCK_READS = 7
FIRST_TRACK = 1  # only the first process has a thread with this number
log = get_logger(__name__)


class Tracer:
    """Writer of the trace of `machine.trace_step` to `traces/step_<number>-rank<rank>.json` of the store, if set.

    The traces include the communication threads of `group`. The job runs the steps after `first`.
    """

    def __init__(self, job: TrainingJob, store: CheckpointStore, group: Group, *, first: int) -> None:
        self._number, self._store, self._group = job.machine.trace_step, store, group
        if self._number is not None and not first < self._number <= job.until:
            steps = f"steps {first + 1} to {job.until}"
            log.warning(f"no trace: step {self._number} is not in this job, which runs {steps}")

    @contextmanager
    def step(self, number: int, trainer: Trainer) -> Iterator[None]:
        """Wrap all work of step `number`: the step, metrics, and a checkpoint if due."""
        if number != self._number:
            yield
            return
        trainer.span = record_function
        try:
            with self._group.record_operations() as spans, profile(activities=[ProfilerActivity.CPU]) as profiler:
                reads = [_read_clocks() for _ in range(CLOCK_READS)]
                with record_function(f"step {number}"):
                    yield
        finally:
            del trainer.span  # restores the class attribute
        path = self._store.folder / TRACES_FOLDER / f"step_{number:07d}-rank{self._group.rank}.json"
        try:
            with atomic_replace(path) as temporary:
                profiler.export_chrome_trace(str(temporary))
                _add_spans(temporary, spans, reads=reads, rank=self._group.rank)
        except OSError as error:
            log.warning(f"the trace of step {number} could not be written to {path}: {error}")
        else:
            log.info(f"trace of step {number} written to {path}: open it in ui.perfetto.dev")


def _read_clocks() -> tuple[float, float]:
    """Add an event CLOCK to the trace; return `time.perf_counter` before and after it."""
    before = time.perf_counter()
    with record_function(CLOCK):
        pass
    return before, time.perf_counter()


def _add_spans(path: Path, spans: list[traffic.OperationSpan], *, reads: list[tuple[float, float]], rank: int) -> None:
    """Add spans to a trace of torch's profiler (Chrome format, microseconds).

    Spans and `reads`, the times before and after each event CLOCK of the trace, are in seconds of `perf_counter`.
    """
    trace: dict[str, Any] = parse_json(require_regular_file(path).read_text())
    marks = [event for event in trace["traceEvents"] if event.get("name") == CLOCK]
    pairs = zip(reads, sorted(marks, key=lambda event: float(event["ts"])), strict=True)
    (before, after), mark = min(pairs, key=lambda pair: pair[0][1] - pair[0][0])
    origin, clock = mark["ts"] + mark["dur"] / 2, (before + after) / 2
    events = [event for event in trace["traceEvents"] if event not in marks]
    process = {"ph": "M", "pid": os.getpid(), "ts": 0}
    events.append(process | {"name": "process_name", "tid": 0, "args": {"name": f"rank {rank}"}})
    for number, lane in enumerate(_lanes(spans)):
        track = {"pid": os.getpid(), "tid": FIRST_TRACK + number}
        name = "communication thread" if number == 0 else f"communication, concurrent ({number})"
        events.append(process | track | {"name": "thread_name", "args": {"name": name}})
        for span in lane:
            times = {"ts": origin + (span.begun - clock) * 1e6, "dur": (span.ended - span.begun) * 1e6}
            args = {} if span.num_bytes is None else {"bytes": span.num_bytes}
            name, _, _ = span.name.partition(" of ")  # the file name identifies backend and rank
            events.append({"ph": "X", "cat": "communication", "name": name, "args": args, **track, **times})
    path.write_text(json.dumps(trace | {"traceEvents": events}))


def _lanes(spans: Iterable[traffic.OperationSpan]) -> list[list[traffic.OperationSpan]]:
    """Distribute spans to rows without overlaps, because a track cannot show overlapping spans."""
    lanes: list[list[traffic.OperationSpan]] = []
    for span in sorted(spans, key=lambda span: span.begun):
        free = next((lane for lane in lanes if lane[-1].ended <= span.begun), None)
        if free is None:
            lanes.append(free := [])
        free.append(span)
    return lanes
