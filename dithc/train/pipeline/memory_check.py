"""Memory need of a run compared with available memory.

Logs warnings before the first step and explains failed allocations. The need is AutoMem's record if it exists, else the
rule for memory requests of jobs.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dithc.config import training
from dithc.core.logging import get_logger, out_of_memory
from dithc.engine.numa import available_bytes
from dithc.train.job import TrainingJob
from dithc.train.memory_tiers import TrainingMemory

SLACK = 1.25  # factor on the rule's value, for temporary memory and fragmentation
# Memory in addition to state and images: packed operands, stacks and heaps of threads, checkpoint buffers. Measured for
# DiT-S/2 under address limits: 16 images of 7.4 MiB ran with 0.56 GiB above the state; 8 images did not with 0.36 GiB.
BESIDE_BYTES = 400 << 20
log = get_logger(__name__)


def free_bytes() -> int | None:
    """Return the memory left to this process by machine, control group and address limit; None if unknown."""
    free = available_bytes()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return max(0, limit - taken) if free is None else max(0, min(free, limit - taken))


@contextmanager
def within(job: TrainingJob, *, tokens: int, at_once: int, memory: TrainingMemory) -> Iterator[None]:
    """Convert a failed allocation for `at_once` images of `tokens` each into a UserError with a size that fits."""
    free, run = free_bytes(), job.run
    state = run.state_bytes + (run.snapshot_bytes if job.machine.checkpoint_mode == "async" else 0)
    needs = state + BESIDE_BYTES + at_once * run.image_bytes(tokens)
    if free is not None and needs > free and memory.tiers is None:
        fix = _fix(run, tokens, at_once, free - state)
        log.warning(
            f"this rank needs about {out_of_memory.gib(needs)} and only {out_of_memory.gib(free)} are available: "
            f"the system may kill it; {fix}"
        )
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        wanted = out_of_memory.requested_memory(error)
        if wanted is None:
            raise
        seen = memory.kept_bytes
        image = SLACK * run.image_bytes(tokens) if seen is None else seen / at_once
        there_was = (
            ""
            if free is None
            else f"{out_of_memory.gib(free)} before its start, its state takes {out_of_memory.gib(state)}; "
        )
        raise out_of_memory.out_of_memory(
            f"training {job.name}",
            wanted=wanted,
            there_is=f"{there_was}{out_of_memory.gib(image)} per image of {at_once} at once",
            fix=_fix(run, tokens, at_once, None if free is None else free - state, seen=seen),
        ) from error


def _fix(run: training.RunConfig, tokens: int, at_once: int, room: int | None, *, seen: int | None = None) -> str:
    """Return settings that fit into `room` bytes in addition to the state."""

    def fits(recompute: training.Recompute) -> int:
        image = SLACK * run.image_bytes(tokens, recompute=recompute)
        if seen is not None and recompute == run.activation_checkpointing:
            image = max(1.0, seen / at_once)
        return at_once // 2 if room is None else min(at_once // 2, int((room - BESIDE_BYTES) / image))

    ways = []
    if (most := fits(run.activation_checkpointing)) >= 1:
        ways.append(f"`micro_batch_size: {most}` of the run, the largest that fits")
    if run.activation_checkpointing == "none" and (most := fits("block")) >= 1:
        ways.append(f"`activation_checkpointing: block` with `micro_batch_size: {most}`")
    ways.append("`machine.memory: {fast_memory_gib, spill_folder, spill_gib}`, which moves the rest to a file")
    return f"set {', or '.join(ways)}; or use more memory or ranks (`sharding: zero1` distributes the state)"
