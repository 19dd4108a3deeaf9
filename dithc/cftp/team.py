"""The threads of this process that operators run on, grouped by cluster, as Python sees them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from dithc import native
from dithc.native import contexts, teams

# A time is the median of several short runs of barriers: one that the system interrupts is milliseconds long.
BARRIERS_PER_RUN, RUNS = 1000, 21


@dataclass(frozen=True, kw_only=True)
class Team:
    """Persistent threads, pinned where they fill the machine; the caller is thread 0, and the others sleep while nobody calls.

    Attributes:
        clusters: numbers of the threads of each cluster, consecutive.
        cpus: the CPU of each thread; empty where placement is left to the system.
        nodes: memory node of each cluster; empty where all memory is of one node, or not bound.
        reason: why there is but one thread, or "".
    """

    clusters: tuple[tuple[int, ...], ...]
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    reason: str = ""

    @classmethod
    def of(cls, *, num_threads: int | None = None) -> "Team":
        """The team that operators of the C library run on with that many threads (None: torch's number), started if need be.

        Without the library there is no team but the caller.

        Raises:
            MemoryError, ValueError: the system refused memory or threads.
        """
        if native.library() is None:
            return cls(clusters=((0,),), cpus=(), nodes=(), reason=native.load().reason)
        layout = contexts.layout(num_threads=num_threads)
        return cls(
            clusters=tuple(tuple(cluster) for cluster in layout.clusters),
            cpus=layout.cpus,
            nodes=layout.nodes,
        )

    @property
    def num_threads(self) -> int:
        """Threads, the caller counted."""
        return sum(map(len, self.clusters))

    def run(self, function: Callable[[int, int], object]) -> None:
        """Calls `function(thread, threads)` on every thread and returns when all calls have; in a forked child on the caller.

        Operators that the function calls run on the calling thread alone. It may run another team, but one that runs this team
        again waits for ever.

        Raises:
            BaseException: what the first thread (by number) raised whose call failed, with a note that names the thread; the
                other calls were finished.
        """
        if self.reason:
            function(0, 1)
        else:
            teams.run(function, num_threads=self.num_threads)

    def barrier_seconds(self, *, count: int = BARRIERS_PER_RUN, runs: int = RUNS) -> float:
        """What one of `count` barriers of all threads, back to back, takes: the median over `runs`; 0.0 for one thread."""
        return median(self.barrier_times(count=count, runs=runs))

    def barrier_times(self, *, count: int = BARRIERS_PER_RUN, runs: int = RUNS) -> list[float]:
        """Seconds of one barrier in each of the runs, after one that warms up."""
        if self.num_threads == 1:
            return [0.0]
        teams.barriers(count, num_threads=self.num_threads)
        return [self._seconds(count) / count for _ in range(runs)]

    def _seconds(self, count: int) -> float:
        start = time.perf_counter()
        teams.barriers(count, num_threads=self.num_threads)
        return time.perf_counter() - start

    def describe(self) -> str:
        """One line for a person."""
        if self.reason:
            return f"team: the caller alone, {self.reason}"
        sizes = " + ".join(str(len(cluster)) for cluster in self.clusters)
        pinned = f"pinned to CPUs {_ranges(self.cpus)}" if self.cpus else "not pinned"
        bound = f"memory bound to nodes {_ranges(self.nodes)}" if self.nodes else "memory of one node"
        return f"team: {self.num_threads} thread(s) in {len(self.clusters)} cluster(s) ({sizes}), {pinned}; {bound}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """0-3,5 for (0, 1, 2, 3, 5)."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
