"""Thread team of a rank, grouped by core cluster, and the partition of work among clusters and cores.

Purpose: the clusters of a die form a tensor-parallel group inside one process (CFTP). Every operator's output is
partitioned among them, inputs are read in place, and no data is exchanged. The same rule shares a global batch among
ranks.
Contents: `ThreadTeam`, the placement of the threads that run operators; `partition`, the rule that cuts outputs and batches.
Invariants: parts cover the range in order, without overlap, for any size and any number of parts, and equal those of
the C library (kernels/team), which a test compares. Idle threads of a team sleep.
Extending: change the rule in C and here in one commit.
"""

import time
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

from dithc.engine import native
from dithc.engine.native import contexts, rooflines

# The time is the median of several short runs of barriers, because a run that the system interrupts takes milliseconds.
BARRIERS_PER_RUN, RUNS = 1000, 21


@dataclass(frozen=True, kw_only=True)
class ThreadTeam:
    """Persistent threads, pinned if they fill the machine. The caller is thread 0, and idle threads sleep.

    Attributes:
        clusters: numbers of the threads of each cluster, consecutive.
        cpus: CPU of each thread; empty if the system places the threads.
        nodes: memory node of each cluster; empty without binding.
        reason: reason for a single thread, or "".
    """

    clusters: tuple[tuple[int, ...], ...]
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    reason: str = ""

    @classmethod
    def of(cls, *, num_threads: int | None = None) -> "ThreadTeam":
        """Return the team of the C library's operators, and start it if necessary; None uses torch's number of threads.

        Without the library the team is the caller alone. MemoryError or ValueError: the system refused memory or threads.
        """
        if native.library() is None:
            return cls(clusters=((0,),), cpus=(), nodes=(), reason=native.load_library().reason)
        layout = contexts.layout(num_threads=num_threads)
        return cls(clusters=tuple(map(tuple, layout.clusters)), cpus=layout.cpus, nodes=layout.nodes)

    @property
    def num_threads(self) -> int:
        return sum(map(len, self.clusters))

    def barrier_seconds(self) -> float:
        return median(self.barrier_times())

    def barrier_times(self, *, count: int = BARRIERS_PER_RUN, runs: int = RUNS) -> list[float]:
        """Return the seconds per barrier of each run of `count` barriers, after a warm-up run; [0.0] for one thread."""
        if self.num_threads == 1:
            return [0.0]
        rooflines.barriers(count, num_threads=self.num_threads)
        marks = [time.perf_counter()]
        for _ in range(runs):
            rooflines.barriers(count, num_threads=self.num_threads)
            marks.append(time.perf_counter())
        return [(end - start) / count for start, end in pairwise(marks)]

    def describe(self) -> str:
        """Return a one-line summary for the user."""
        if self.reason:
            return f"team: the caller alone, {self.reason}"
        sizes = " + ".join(str(len(cluster)) for cluster in self.clusters)
        pinned = f"pinned to CPUs {_ranges(self.cpus)}" if self.cpus else "not pinned"
        bound = f"memory bound to nodes {_ranges(self.nodes)}" if self.nodes else "memory of one node"
        return f"team: {self.num_threads} thread(s) in {len(self.clusters)} cluster(s) ({sizes}), {pinned}; {bound}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Format (0, 1, 2, 3, 5) as 0-3,5."""
    neighbors = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in neighbors]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def partition(length: int, parts: int, *, multiple: int = 1) -> list[slice]:
    """Split `range(length)` into `parts` consecutive slices.

    Sizes are multiples of `multiple` (for example a tile height) that differ by at most one multiple, larger ones
    first. Only the last nonempty part may be shorter, at the end of the range. With more parts than multiples the last
    parts are empty.

    Raises:
        ValueError: a negative length, or parts or multiple below one.
    """
    if length < 0 or parts < 1 or multiple < 1:
        raise ValueError(
            f"partition: got length={length}, parts={parts}, multiple={multiple}; "
            "expected length 0 or more, parts and multiple 1 or more; correct the caller"
        )
    units_each, units_extra = divmod(-(-length // multiple), parts)
    edges = [min((part * units_each + min(part, units_extra)) * multiple, length) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
