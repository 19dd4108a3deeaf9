"""Memory need of a run against available memory: warnings before the first step, errors on failed allocations.

The need is AutoMem's record if it exists, else the rule for memory requests of jobs.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dithc.config import training
from dithc.log import logger, refusal
from dithc.pages import available_bytes
from dithc.train.job import Job
from dithc.train.memory import TrainingMemory

SLACK = 1.25  # of what a rule says, for what is passing and for fragments
# Beside state and images: packed operands, stacks and heaps of threads, buffers of checkpoints. DiT-S/2 under limits on
# addresses: 16 images of 7.4 MiB ran with 0.56 GiB above the state, 8 did not with 0.36.
BESIDE_BYTES = 400 << 20
log = logger(__name__)


def free_bytes() -> int | None:
    """Return the memory that this process can still use (machine, control group, address limit); None if unknown."""
    free = available_bytes()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return max(0, limit - taken) if free is None else max(0, min(free, limit - taken))


@contextmanager
def within(job: Job, *, tokens: int, at_once: int, memory: TrainingMemory) -> Iterator[None]:
    """Convert a failed allocation inside into a UserError with the need, the limit and a size that fits.

    `tokens` is per image, `at_once` is the number of images that a rank computes at once.
    """
    free, run = free_bytes(), job.run
    state = run.state_bytes + (run.snapshot_bytes if job.checkpoints == "async" else 0)
    needs = state + BESIDE_BYTES + at_once * run.image_bytes(tokens)
    if free is not None and needs > free and memory.tiers is None:
        fix = _fix(run, tokens, at_once, free - state)
        log.warning(
            f"this rank needs about {refusal.gib(needs)} and may take {refusal.gib(free)}: it may be ended for it; {fix}"
        )
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        wanted = refusal.asked(error)
        if wanted is None:
            raise
        seen = memory.kept_bytes
        image = SLACK * run.image_bytes(tokens) if seen is None else seen / at_once
        there_was = (
            "" if free is None else f"{refusal.gib(free)} before it began, its state takes {refusal.gib(state)}; "
        )
        raise refusal.out_of_memory(
            f"training {job.name}",
            wanted=wanted,
            there_is=f"{there_was}{refusal.gib(image)} for each of {at_once} image(s) at once",
            fix=_fix(run, tokens, at_once, None if free is None else free - state, seen=seen),
        ) from error


def _fix(run: training.Run, tokens: int, at_once: int, room: int | None, *, seen: int | None = None) -> str:
    """Return a setting that fits into `room` bytes next to the state."""

    def fits(recompute: training.Recompute) -> int:
        image = SLACK * run.image_bytes(tokens, recompute=recompute)
        if seen is not None and recompute == run.recompute:
            image = max(1.0, seen / at_once)
        return at_once // 2 if room is None else min(at_once // 2, int((room - BESIDE_BYTES) / image))

    ways = []
    if (most := fits(run.recompute)) >= 1:
        ways.append(f"`micro_batch: {most}` of the run, the largest that fits")
    if run.recompute == "none" and (most := fits("block")) >= 1:
        ways.append(f"`recompute: block` with `micro_batch: {most}`")
    ways.append("`machine.memory: {fast_budget_gib, file_folder, file_gib}`, which keeps the rest in a file")
    return f"set {', or '.join(ways)}; or take more memory or ranks (`sharding: zero1` shares the state among them)"
