"""Detection of slow ranks from the time that each rank computes in a step: pure functions of gathered tables.

In every exchange of gradients all ranks wait for the slowest rank. The time without these waits therefore identifies it. A rank
is slow if this time exceeds the median of the other ranks in three windows in sequence, and beyond its own noise in all of them
together.

S steps, R ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A slow rank is slow in WINDOWS windows of WINDOW_STEPS steps. With tables of 10 steps, they are complete within 30 steps.
WINDOW_STEPS, WINDOWS = 7, 3
HISTORY_STEPS = 7 * WINDOW_STEPS  # steps that determine the noise of a rank
DEVIATIONS = 4.0  # robust standard deviations of the median of all WINDOWS
# For normal noise: standard deviation / MAD, and error of a median / error of a mean.
NORMAL_MAD, NORMAL_MEDIAN = 1.4826, 1.2533
DOMINANCE = 1.25  # factor by which a cause exceeds the next one
EXPLAINED = 0.5  # share of the excess time that a counter explains
PAUSE_RATIO, PAUSE_SECONDS = 4.0, 1.0  # a single step that is this slow, by this time
CLOCK_RATIO, MAJOR_FAULTS = 0.95, 50.0
TINY = 1e-9  # seconds

CAUSES = {
    "quota": "a CPU quota of its control group withholds CPU time",
    "hypervisor": "the hypervisor gives its CPUs to other machines",
    "other processes": "other processes use its CPUs",
    "stopped": "its process does not run (stopped by a signal, or waits for a device)",
    "clock": "its CPUs have a lower clock rate",
    "paging": "it reads memory pages from a disk",
    "images": "it waits for its images",
    "copies": "it waits for copies between memory tiers",
    "computation": "the same work needs more CPU time",
    "mixed": "several causes of similar size",
}
"""Descriptions by cause."""
SECONDS = ("images", "copies", "on_cpu", "throttled", "stolen", "delayed")
TOTALS = (*SECONDS, "major_faults", "ghz")
_CAUSE_OF = {"throttled": "quota", "stolen": "hypervisor", "delayed": "other processes"}


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Times of S consecutive steps on all ranks.

    Attributes:
        last: number of the last step.
        own: (S, R) seconds of each step without waits for other ranks.
        totals: (R) each, sums over the steps: `images` and `copies` (seconds of waiting), `on_cpu` (seconds of the main thread),
            `throttled`, `stolen`, `delayed` (seconds), `major_faults`; and `ghz`.
    """

    last: int
    own: Array
    totals: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A finding.

    Attributes:
        first_step, last_step: first and last step with this finding so far.
        ratio: seconds of the rank over the median of the other ranks.
        lost_seconds: seconds that the other ranks wait per step; for a pause, in all.
        cause: key of `CAUSES`.
        is_pause: whether a single step was slow.
    """

    rank: int
    node: str
    first_step: int
    last_step: int
    ratio: float
    lost_seconds: float
    cause: str
    is_pause: bool = False

    def __str__(self) -> str:
        name, why = f"rank {self.rank} on {self.node}", f"cause: {self.cause} ({CAUSES[self.cause]})"
        if self.is_pause:
            return f"{name} paused for {self.lost_seconds:.1f} s in step {self.first_step}; {why}"
        return (
            f"{name} needs {self.ratio:.2f} times the time of the other ranks in steps {self.first_step} to "
            f"{self.last_step}, {self.lost_seconds:.2g} s more per step; {why}"
        )


@dataclass(kw_only=True)
class SlowRankDetector:
    """Detector of slow ranks; `add` receives the times of consecutive steps.

    Attributes:
        images: (R) images of each rank per step.
        nodes: name of the node of each rank.
        above: ratio above which a rank is slow.
        findings: findings so far; a slow rank that recovers and slows again has several.
    """

    images: Sequence[int]
    nodes: Sequence[str]
    above: float = 1.10
    findings: list[SlowRank] = field(default_factory=list)
    _own: list[Array] = field(default_factory=list)
    _recent: list[RankTimes] = field(default_factory=list)
    _active: dict[int, int] = field(default_factory=dict)  # rank -> index in `findings`

    def add(self, times: RankTimes) -> list[SlowRank]:
        """Add the times of further steps; return new findings."""
        # A rank with more images is not slow if it needs the same time per image, nor one with fewer images and the same time.
        relative = np.minimum(
            *(values / np.maximum(median_of_others(values), TINY) for values in self._own_times(times))
        )
        self._own = [*self._own, *relative][-HISTORY_STEPS:]
        enough = -(-WINDOW_STEPS * WINDOWS // len(times.own))
        self._recent = [*self._recent, times][-enough:]
        known = len(self.findings)
        self._add_slow(times)
        self._add_pauses(times, relative)
        return self.findings[known:]

    def _own_times(self, times: RankTimes) -> tuple[Array, Array]:
        """Return the seconds of each step and rank, and those per image."""
        return times.own, times.own / np.asarray(self.images, np.float64)

    @property
    def slow(self) -> list[SlowRank]:
        """Ranks that are slow at present."""
        return [self.findings[index] for index in self._active.values()]

    def _add_slow(self, times: RankTimes) -> None:
        if len(self._own) < WINDOW_STEPS * WINDOWS:
            return
        complete = len(self._own) // WINDOW_STEPS * WINDOW_STEPS
        windows = np.stack(self._own[-complete:]).reshape(-1, WINDOW_STEPS, times.own.shape[1])
        medians = np.median(windows, axis=1)
        noise = NORMAL_MAD * np.median(np.abs(windows - medians[:, None]), axis=(0, 1))
        deviation = noise * NORMAL_MEDIAN / np.sqrt(WINDOW_STEPS * WINDOWS)
        latest = medians[-WINDOWS:]
        is_slow = np.all(latest > self.above, axis=0) & (np.median(latest, axis=0) - 1 > DEVIATIONS * deviation)
        for rank in np.flatnonzero(np.all(latest < 1 + (self.above - 1) / 2, axis=0)).tolist():
            self._active.pop(rank, None)
        for rank in np.flatnonzero(is_slow).tolist():
            ratio = float(np.median(latest[:, rank]))
            if rank in self._active:
                index = self._active[rank]
                self.findings[index] = replace(self.findings[index], last_step=times.last, ratio=ratio)
                continue
            own = np.concatenate([item.own for item in self._recent])
            lost = float(np.median(own[:, rank]) * (1 - 1 / ratio))
            totals = _summed([item.totals for item in self._recent])
            cause = dominant_cause(own.sum(axis=0), totals, rank=rank)
            first = times.last - WINDOW_STEPS * WINDOWS + 1
            self._active[rank] = len(self.findings)
            self._report(rank, first, times.last, ratio=ratio, lost=lost, cause=cause)

    def _add_pauses(self, times: RankTimes, relative: Array) -> None:
        lost = times.own - median_of_others(times.own)
        for step, rank in zip(*np.nonzero((relative > PAUSE_RATIO) & (lost > PAUSE_SECONDS)), strict=True):
            if rank in self._active:
                continue
            number = times.last - len(times.own) + 1 + int(step)
            cause = dominant_cause(times.own.sum(axis=0), times.totals, rank=int(rank))
            seconds = float(lost[step, rank])
            ratio = float(relative[step, rank])
            self._report(int(rank), number, number, ratio=ratio, lost=seconds, cause=cause, is_pause=True)

    def _report(
        self, rank: int, first: int, last: int, *, ratio: float, lost: float, cause: str, is_pause: bool = False
    ) -> None:
        finding = SlowRank(
            rank=rank,
            node=self.nodes[rank],
            first_step=first,
            last_step=last,
            ratio=ratio,
            lost_seconds=lost,
            cause=cause,
            is_pause=is_pause,
        )
        self.findings.append(finding)


def median_of_others(values: Array) -> Array:
    """Return, for each rank, the median over the other ranks of values (..., R); R is at least 2."""
    order = np.argsort(values, axis=-1)
    positions = np.argsort(order, axis=-1)  # of each rank in the sorted values
    ordered, others = np.take_along_axis(values, order, axis=-1), values.shape[-1] - 1

    def at(index: int) -> Array:  # element of the sorted values without the rank
        return np.take_along_axis(ordered, index + (positions <= index), axis=-1)

    return (at((others - 1) // 2) + at(others // 2)) / 2


def dominant_cause(own: Array, totals: Mapping[str, Array], *, rank: int) -> str:
    """Return the cause of a rank's excess time over the median of the other ranks.

    `own` are seconds (R) over the same steps as `totals` of `RankTimes`.
    """
    excess = {name: _excess(totals[name], rank) for name in ("images", "copies")}
    excess["computation"] = _excess(own - totals["images"] - totals["copies"], rank)
    (cause, largest), (_, second), *_ = sorted(excess.items(), key=lambda item: item[1], reverse=True)
    if largest < DOMINANCE * second:
        return "mixed"
    if cause != "computation":
        return cause
    off_cpu = _excess(own - totals["images"] - totals["copies"] - totals["on_cpu"], rank)
    withheld = {cause: _excess(totals[name], rank) for name, cause in _CAUSE_OF.items()}
    withheld["stopped"] = off_cpu - withheld["other processes"]
    if withheld["quota"] > EXPLAINED * largest:  # also counted as a delay of its threads
        return "quota"
    if max(off_cpu, *withheld.values()) > EXPLAINED * largest:
        cause = max(withheld, key=lambda name: withheld[name])
        return "paging" if cause == "stopped" and _excess(totals["major_faults"], rank) > MAJOR_FAULTS else cause
    if 0 < totals["ghz"][rank] < CLOCK_RATIO * float(median_of_others(totals["ghz"])[rank]):
        return "clock"
    return "computation"


def _excess(values: Array, rank: int) -> float:
    return float(values[rank] - median_of_others(values)[rank])


def _summed(tables: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Return the sum of each total, and the mean clock rate."""
    summed = {name: np.sum([table[name] for table in tables], axis=0) for name in tables[0]}
    return summed | {"ghz": summed["ghz"] / len(tables)}
