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
from dithc.core.units import format_bytes
from dithc.engine.cost import memory as cost
from dithc.engine.numa import available_bytes
from dithc.train.job import TrainingJob
from dithc.train.memory_tiers import TrainingMemory

SLACK = 1.25  # factor on the rule's value, for temporary memory and fragmentation
# Memory in addition to state and images: packed operands, stacks and heaps of threads, checkpoint buffers. Measured for
# DiT-S/2 under address limits: 16 images of 7.4 MiB ran with 0.56 GiB above the state; 8 images did not with 0.36 GiB.
OVERHEAD_BYTES = 400 << 20
log = get_logger(__name__)


def free_bytes() -> int | None:
    """Return the memory left to this process by machine, control group and address limit; None if unknown."""
    free = available_bytes()
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return free
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return max(0, limit - used) if free is None else max(0, min(free, limit - used))


@contextmanager
def allocation_guard(job: TrainingJob, *, tokens: int, images: int, memory: TrainingMemory) -> Iterator[None]:
    """Convert a failed allocation for `images` images of `tokens` each into a UserError with a size that fits."""
    free, run = free_bytes(), job.run
    estimate = cost.rank_memory(
        run,
        images=images,
        tokens=tokens,
        process=OVERHEAD_BYTES,
        stages=job.machine.pipeline_stages,
        snapshot=job.machine.checkpoint_mode == "async",
    )
    state, needed = estimate.state + estimate.snapshot, estimate.total
    if free is not None and needed > free and memory.tiers is None:
        fix = _fix(run, tokens, images, int(free - state))
        log.warning(
            f"this rank needs about {format_bytes(needed)} and only {format_bytes(free)} are available: "
            f"the system may kill it; {fix}"
        )
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        requested = out_of_memory.requested_memory(error)
        if requested is None:
            raise
        measured = memory.kept_bytes
        image = SLACK * cost.image_bytes(run, tokens) if measured is None else measured / images
        texts = [f"{format_bytes(image)} per image of {images} at once"]
        if free is not None:
            texts.insert(0, f"{format_bytes(free)} before its start, its state takes {format_bytes(state)}")
        raise out_of_memory.out_of_memory(
            f"training {job.name}",
            requested=requested,
            available="; ".join(texts),
            fix=_fix(run, tokens, images, None if free is None else int(free - state), measured=measured),
        ) from error


def _fix(run: training.RunConfig, tokens: int, images: int, free: int | None, *, measured: int | None = None) -> str:
    """Return settings that fit into `free` bytes in addition to the state."""

    def fits(recompute: training.Recompute) -> int:
        image = SLACK * cost.image_bytes(run, tokens, recompute=recompute)
        if measured is not None and recompute == run.activation_checkpointing:
            image = max(1.0, measured / images)
        return images // 2 if free is None else min(images // 2, int((free - OVERHEAD_BYTES) / image))

    options = []
    if (batch := fits(run.activation_checkpointing)) >= 1:
        options.append(f"`micro_batch_size: {batch}` of the run, the largest that fits")
    if run.activation_checkpointing == "none" and (batch := fits("block")) >= 1:
        options.append(f"`activation_checkpointing: block` with `micro_batch_size: {batch}`")
    options.append("`machine.memory: {fast_memory_gib, spill_folder, spill_gib}`, which moves the rest to a file")
    return f"set {', or '.join(options)}; or use more memory or ranks (`sharding: zero1` distributes the state)"
