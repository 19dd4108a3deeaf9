"""Times of all ranks during training, gathered every ten steps to identify slow ranks, and slow links between nodes."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from dithc.config import MachineConfig
from dithc.core.artifacts import CheckpointStore, atomic_write
from dithc.core.integrity import dump_checksummed, load_document, require_regular_file
from dithc.core.logging import get_logger
from dithc.engine.comm import Group
from dithc.engine.cost import balanced_shares
from dithc.engine.hardware import CpuCounters
from dithc.engine.scheduler import deadline
from dithc.train.monitoring.slow_links import LinkWatch
from dithc.train.monitoring.slow_ranks import (
    TOTALS,
    Array,
    RankTimes,
    SlowRank,
    SlowRankDetector,
    median_of_others,
)
from dithc.train.step import Trainer

SLOW_FILE = "slow.json"
EVERY = 10  # steps between two exchanges of times
WARM_UP_STEPS = 5  # steps that allocate memory and record plans
MAX_COLUMNS = 200  # of the table of ratios in `SLOW_FILE`; more are merged in pairs
BALANCINGS, MIN_GAIN = 3, 0.02  # attempts to balance shares; smallest reduction of a step that changes them
MAX_LISTED = 5  # findings in the closing line
KEYS = {"nodes", "images", "steps", "last_steps", "ratios", "findings", "slow_now"}
log = get_logger(__name__)


class RankWatch:
    """Times of the ranks of a run: finds slow ranks, and balances the shares of the global batch. A context manager.

    Attributes:
        excluded: nodes that the next job should avoid, if `machine.slow.action` is exclude; on the first rank.
    """

    def __init__(self, group: Group, machine: MachineConfig, *, trainer: Trainer, store: CheckpointStore) -> None:
        """Prepare the comparison; collective. Measured shares of an earlier job on the same nodes apply at once."""
        self._group, self._settings, self._trainer = group, machine.slow, trainer
        self._path = store.folder / SLOW_FILE
        # Ranks that share layers, stages, and DistributedDataParallel wait inside the passes, where the wait is not measured.
        layout = trainer.strategy.layout
        self._is_on = trainer.strategy.is_exchanging and layout.tensor_size == layout.num_stages == 1
        if not self._is_on and group.size > 1:
            log.info(
                f"slow ranks are not detected, and batch_shares stay equal: strategy {machine.strategy} with gradient_sync "
                f"{machine.gradient_sync} and {machine.pipeline_stages} stage(s) does not measure waits"
            )
        self._nodes: list[str] = group.gather_objects(group.host)
        self._own: list[float] = []
        self._sums, self._before = dict.fromkeys(TOTALS, 0.0), CpuCounters.read()
        self._steps = self._compared = 0
        self._columns: list[tuple[int, Array]] = []
        self._stride = 1  # exchanges per column
        self._pending: list[Array] = []
        self._earlier: list[dict[str, Any]] = []  # findings of earlier jobs
        self._balancings = BALANCINGS if machine.batch_shares == "measured" and self._is_on else 0
        if self._balancings and trainer.memory.tiers is not None:
            self._warn("batch_shares: equal instead of measured, because AutoMem plans the memory of equal shares")
            self._balancings = 0
        if self._balancings:
            earlier = group.broadcast_object(read_record(self._path) if group.rank == 0 else None) or {}
            shares = earlier.get("images", []) if earlier.get("nodes") == self._nodes else []
            if sum(shares) == sum(trainer.shares) and min(shares) > 0:
                trainer.divide(shares)
                log.info(f"images per rank and step, as in the previous job: {shares}")
        self._detector = SlowRankDetector(images=trainer.shares, nodes=self._nodes, above=machine.slow.above)
        self._links, self._link_findings = LinkWatch(group), list[dict[str, Any]]()
        self.excluded: list[str] = []
        if self._is_on and group.rank == 0:
            self._continue_record()
            self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_on:
            return
        findings = [finding["text"] for finding in self._findings()]
        steps = self._compared
        text = "; ".join(findings[-MAX_LISTED:]) or ("none was slow" if steps else "too few to compare them")
        log.info(f"watched {self._group.size} ranks for {steps} steps: {text}")
        self._write()

    def step(self, number: int) -> dict[str, float]:
        """Run a step of the trainer and record the times of this rank; every ten steps, compare all ranks. Collective."""
        if not self._is_on:
            return self._trainer.step(number)
        meter = self._trainer.strategy.meter
        before, on_cpu, start = meter.waited_seconds, time.thread_time(), time.perf_counter()
        waited = self._group.waited_seconds
        values = self._trainer.step(number)
        seconds, on_cpu = time.perf_counter() - start, time.thread_time() - on_cpu
        self._steps += 1
        if self._steps <= WARM_UP_STEPS:
            self._before = CpuCounters.read() if self._steps == WARM_UP_STEPS else self._before
            return values
        # `exposed_seconds` also includes waits between the steps, such as validation, and excludes those after the gradients.
        waited = (
            self._group.waited_seconds - waited + values.get("exposed_seconds", 0.0) - before + meter.waited_seconds
        )
        self._own.append(seconds - waited)
        self._sums["images"] += values["data_seconds"]
        self._sums["copies"] += values.get("stall_seconds", 0.0)
        self._sums["on_cpu"] += on_cpu
        if len(self._own) == EVERY:
            self._compare(number)
        return values

    def stop_reason(self) -> str | None:
        """Return the reason to end this job, if nodes are to be excluded from the next one."""
        if not self.excluded:
            return None
        return f"slow node(s) {', '.join(self.excluded)}, excluded from the next job"

    def _compare(self, last: int) -> None:
        """Gather the times of the last steps; all ranks draw the same conclusions."""
        counters = CpuCounters.read()
        sums = self._sums | counters.since(self._before)
        row = [*self._own, *(sums[name] for name in TOTALS), float(self._links.is_due)]
        self._own, self._before, self._sums = [], counters, dict.fromkeys(TOTALS, 0.0)
        table = torch.zeros(self._group.size, len(row), dtype=torch.float64)
        table[self._group.rank] = torch.tensor(
            row, dtype=torch.float64
        ).nan_to_num()  # a sum with NaN would have NaN for all
        columns = self._group.all_reduce_(table).numpy().T
        times = RankTimes(last=last, own=columns[:EVERY], totals=dict(zip(TOTALS, columns[EVERY:-1], strict=True)))
        if columns[-1, 0] > 0:
            self._measure_links(last)
        own = np.median(times.own, axis=0)
        if self._balancings and self._balance(own):
            return
        self._compared += EVERY
        pace = own / self._detector.images
        self._add_column(last, np.minimum(own / median_of_others(own), pace / median_of_others(pace)))
        slow = self._detector.slow
        new = self._detector.add(times)
        for finding in new:
            self._warn(f"slow rank: {finding}")
        self._exclude(new)
        if new or slow != self._detector.slow:
            self._write()

    def _measure_links(self, last: int) -> None:
        known = [*self._links.slow]
        texts = self._links.measure()
        for text in texts:
            self._warn(f"slow link: {text}")
            self._link_findings.append({"rank": None, "first_step": last, "is_pause": False, "text": f"link {text}"})
        if known != [*self._links.slow]:
            self._write()

    def _findings(self) -> list[dict[str, Any]]:
        ranks = [asdict(one) | {"text": str(one)} for one in self._detector.findings]
        return sorted([*self._earlier, *ranks, *self._link_findings], key=lambda finding: finding["first_step"])

    def _balance(self, own: Array) -> bool:
        """Divide the global batch by the measured speeds; return whether that changes the shares noticeably."""
        self._balancings -= 1
        shares = balanced_shares(self._trainer.shares, own.tolist())
        expected = float(max(own / self._trainer.shares * shares))
        if expected > (1 - MIN_GAIN) * float(max(own)):
            self._balancings = 0
            return False
        self._trainer.divide(shares)
        log.info(
            f"images per rank and step: {shares}, by measured times; {max(own):.3g} s per step become {expected:.3g} s"
        )
        self._detector = SlowRankDetector(images=shares, nodes=self._nodes, above=self._settings.above)
        return True

    def _exclude(self, findings: Sequence[SlowRank]) -> None:
        """Request a next job without the nodes of slow ranks, if one can run; on the first rank."""
        nodes = sorted({finding.node for finding in findings if not finding.is_pause})
        if self._settings.action == "warn" or not nodes or self._group.rank > 0:
            return
        if fault := deadline.exclusion_fault(nodes):
            log.warning(f"slow rank: {', '.join(nodes)} not excluded, and training continues: {fault}")
        else:
            self.excluded = nodes

    def _warn(self, text: str) -> None:
        if self._group.rank == 0:
            log.warning(text)

    def _add_column(self, last: int, ratios: Array) -> None:
        self._pending.append(ratios)
        if len(self._pending) < self._stride:
            return
        self._columns.append((last, np.mean(self._pending, axis=0)))
        self._pending = []
        if len(self._columns) > MAX_COLUMNS:
            pairs = zip(self._columns[::2], self._columns[1::2], strict=False)
            self._columns = [(end, (first + second) / 2) for (_, first), (end, second) in pairs]
            self._stride *= 2

    def _continue_record(self) -> None:
        """Keep the ratios and findings of earlier jobs with the same number of ranks."""
        content = read_record(self._path)
        if content is None or len(content["nodes"]) != self._group.size:
            return
        columns = zip(content["last_steps"], map(np.array, content["ratios"]), strict=True)
        self._columns = [(last, ratios) for last, ratios in columns if last <= self._trainer.state.step]
        self._earlier = [
            finding for finding in content["findings"] if finding["first_step"] <= self._trainer.state.step
        ]
        self._compared = content["steps"]

    def _write(self) -> None:
        if self._group.rank > 0:
            return
        content = {
            "nodes": self._nodes,
            "images": self._trainer.shares,
            "steps": self._compared,
            "above": self._settings.above,
            "last_steps": [last for last, _ in self._columns],
            "ratios": [[round(float(value), 3) for value in ratios] for _, ratios in self._columns],
            "findings": self._findings(),
            "slow_now": [finding.rank for finding in self._detector.slow],
            "slow_links": [" - ".join(pair) for pair in self._links.slow],
        }
        try:
            atomic_write(self._path, dump_checksummed(content))
        except OSError as error:
            log.warning(f"{self._path} could not be written: {error}")


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the content of a `SLOW_FILE`; None if it is missing or damaged."""
    if not path.exists():
        return None
    try:
        content = load_document(require_regular_file(path).read_text())
        return content if content.keys() >= KEYS else None
    except (OSError, ValueError, AttributeError) as error:
        log.warning(f"{path} is unusable, and is written again: {error}")
        return None
