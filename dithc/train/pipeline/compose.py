"""A training job from its inputs to its manifest."""

import time
from contextlib import ExitStack
from pathlib import Path

from dithc.core.artifacts import CheckpointStore, Lease, Manifest, digest
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.processes import HELD
from dithc.core.weights import digest_of_files, files_of
from dithc.engine import hcops
from dithc.engine.comm import Group
from dithc.train.job import DONE, TrainingJob
from dithc.train.memory_tiers import TrainingMemory
from dithc.train.pipeline.attempt import Attempt
from dithc.train.pipeline.run_manifest import record_outcome, write_manifest

log = get_logger(__name__)


def train(job: TrainingJob, group: Group) -> int:
    """Train `job.run` up to step `job.until` and write the manifest; continues an earlier job.

    Returns:
        DONE, STOPPED or HELD, the same on every rank.

    Raises:
        UserError: missing, damaged or unsuitable input; numbers that are not finite; a full disk.
    """
    start = time.monotonic()
    inputs, store = _inputs(job)
    status: int = DONE
    if group.broadcast_object(_is_done(store, job.until) if group.rank == 0 else None):
        log.info(f"step {job.until} exists in {store.folder}: writing only the manifest")
    else:
        try:
            with TrainingMemory(job.machine.training_memory, group=group) as memory, ExitStack() as stack:
                if job.run.backend != "auto":
                    stack.enter_context(hcops.use(job.run.backend))
                status = Attempt(job, group, store, memory, stack).run()
        except Lease.Held as error:
            log.error(str(error))
            return HELD
    if status == DONE and group.rank == 0:
        write_manifest(job, store=store, inputs=inputs, seconds=time.monotonic() - start)
        record_outcome(job, store)
    # launchers kill the remaining ranks soon after the first has ended, but rank 0 may still be writing
    group.barrier()
    return status


def _is_done(store: CheckpointStore, step: int) -> bool:
    if step not in store.steps():
        return False
    try:
        return not store.open(step).meta.get("unfinished_round", False)
    except UserError as error:
        log.warning(f"repeating that step: {error}")
        return False


def _inputs(job: TrainingJob) -> tuple[dict[str, str], CheckpointStore]:
    """Return the digest of each input manifest by path, and the store that all inputs determine."""
    stages = [("latents", "latents", job.paths.latents), ("init", "train", job.paths.init)]
    inputs = {name: (path, Manifest.read(path, stage=stage).digest) for name, stage, path in stages if path is not None}
    identity: dict[str, object] = {"spec": job.spec} | {name: value for name, (_, value) in inputs.items()}
    if job.run.init_from_file is not None:
        identity["init_from_file"] = _hash_of_weights(Path(job.run.init_from_file), run=job.name)
    store = CheckpointStore(job.paths.store / f"{job.name}-{digest(identity)}")
    return {str(path): value for path, value in inputs.values()}, store


def _hash_of_weights(path: Path, *, run: str) -> str:
    try:
        return digest_of_files(files_of(path))
    except (OSError, ValueError) as error:
        raise user_error(
            f"runs.{run}.init_from_file {path} cannot be read",
            got=error,
            expected="a weights file (safetensors, or an official DiT .pt), or a diffusers folder",
            fix="provide the file, or correct the path, which is relative to the working folder",
        ) from error
