"""A run from inputs to manifest: the composition of all parts."""

import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dithc import hcops
from dithc.cftp import Team
from dithc.cluster import deadline
from dithc.comm import Group
from dithc.config import training
from dithc.diffusion import Objective
from dithc.latents import Batches, Latents
from dithc.log import UserError, logger, problem
from dithc.model import DiT
from dithc.pages import place
from dithc.runs import Lease, Manifest, Store, digest
from dithc.train.checkpoints import Saver, State, facts, state_of
from dithc.train.job import DONE, HELD, STOPPED, Job, Pace, Stop, leased
from dithc.train.loop import AttemptLog, Journal, Tracer, Validation, loop
from dithc.train.memory import TrainingMemory
from dithc.train.run.finish import write_manifest
from dithc.train.run.room import within
from dithc.train.run.setup import fresh_model, start_from_file, start_from_run
from dithc.train.step import Guide, LeftOut, Recovery, Source, Trainer, settle, start_of
from dithc.train.strategies import Layout, Strategy, layout_on
from dithc.weights import digest_of_files, files_of

log = logger(__name__)


@dataclass(frozen=True)
class _Inputs:
    """Digests of a run's inputs, and the store folder that they determine."""

    digests: dict[str, str]
    store: Store


def train(job: Job, group: Group) -> int:
    """Train `job.run` up to step `job.until` and write the manifest.

    Continues an earlier job.

    Returns:
        DONE, STOPPED or HELD, the same on every rank.

    Raises:
        UserError: missing, damaged or unsuitable input; numbers that are not finite; a full disk.
    """
    begun = time.monotonic()
    inputs = _inputs(job)
    store = inputs.store
    status: int = DONE
    if group.broadcast_object(_is_done(store, job.until) if group.rank == 0 else None):
        log.info(f"step {job.until} exists in {store.folder}: writing only the manifest")
    else:
        try:
            with TrainingMemory(job.memory, group=group) as memory:
                status = _train(job, group, store, memory)
        except Lease.Held as error:
            log.error(str(error))
            return HELD
    if status == DONE and group.rank == 0:
        seconds = time.monotonic() - begun
        write_manifest(job, store=store, checkpoint=store.open(job.until), inputs=inputs.digests, seconds=seconds)
    # launchers kill the remaining ranks soon after the first has ended, but rank 0 may still be writing
    group.barrier()
    return status


def _is_done(store: Store, step: int) -> bool:
    if step not in store.steps():
        return False
    try:
        return store.open(step).step == step
    except UserError as error:
        log.warning(f"repeating that step: {error}")
        return False


def _inputs(job: Job) -> _Inputs:
    paths = {"latents": job.latents} | ({"init": job.init} if job.init is not None else {})
    stages = {"latents": "latents", "init": "train"}
    found = {name: Manifest.read(path, stage=stages[name]).digest for name, path in paths.items()}
    named: dict[str, object] = {"spec": job.spec, **found}
    if job.run.init_file is not None:
        named["init_file"] = _hash_of_weights(Path(job.run.init_file), run=job.name)
    folder = job.store / f"{job.name}-{digest(named)}"
    return _Inputs({str(paths[name]): value for name, value in found.items()}, Store(folder))


def _hash_of_weights(path: Path, *, run: str) -> str:
    try:
        return digest_of_files(files_of(path))
    except (OSError, ValueError) as error:
        raise problem(
            f"runs.{run}.init_file {path} cannot be read",
            got=error,
            expected="a weights file (safetensors, or an official DiT .pt), or a diffusers folder",
            fix="provide the file, or correct the path, which is relative to the working folder",
        ) from error


def _train(job: Job, group: Group, store: Store, memory: TrainingMemory) -> int:
    """Run the job between inputs and manifest, under the lease."""
    with ExitStack() as stack:
        if job.run.backend != "auto":
            stack.enter_context(hcops.use(job.run.backend))
        lease = leased(store, group, stack)
        stop = stack.enter_context(Stop(walltime_minutes=job.walltime_minutes))
        stack.enter_context(AttemptLog(store) if group.rank == 0 else nullcontext())
        latents = Latents(job.latents.parent)
        source = _source(job, latents)
        layout = layout_on(group, job.strategy)
        share = -(-job.run.global_batch // layout.data_size)
        tokens = latents.shape[-1] * latents.shape[-2] // job.run.model.patch**2
        stack.enter_context(within(job, tokens=tokens, at_once=min(job.run.micro_batch or share, share), memory=memory))
        model = _initial_model(job, latents)
        said = _said(job, latents, model=model, layout=layout)
        parts: dict[str, Any] = {"model": model, "layout": layout, "memory": memory}
        trainer, state = trainer_of(job.run, group, source, **parts, gradients=job.gradients, sharding=job.sharding)
        memory.follow(state, store=store if group.rank == 0 else None)
        pace = Pace()
        num_samples = len(latents.rows("train"))
        saver = Saver(
            store,
            lease=lease,
            group=group,
            said=said,
            pace=pace,
            keep_last=job.run.keep_last,
            keep_every=job.run.kept_every,
            position=partial(_position, global_batch=job.run.global_batch, num_samples=num_samples),
            path=job.checkpoints,
        )
        stack.callback(saver.abandon)
        _resume(store, state, job=job, group=group, saver=saver, pace=pace)
        _place(state, memory, trainer.guide)
        left_out = LeftOut(store, group)
        saver.said["left_out"] = left_out.steps
        back = partial(_back, store, state, job=job, group=group, saver=saver)
        recovery = Recovery(job.run.nonfinite, left_out=left_out, roll_back=back)
        tracer = Tracer(job.trace_step, store=store, group=group, first=state.step, until=job.until)
        journal = Journal(store, job=job, first=state.step, epochs=source.epoch, rank=group.rank)
        with journal:
            status = loop(
                *(trainer, state),
                until=job.until,
                saver=saver,
                journal=journal,
                validation=Validation(job.run, latents, seed=job.seed, state=state, group=group, memory=memory),
                recovery=recovery,
                tracer=tracer,
                stop=stop,
                pace=pace,
                group=group,
            )
        if group.rank == 0:
            if status == DONE:
                store.pin(job.until)  # before another trainer can take the lease and prune
            if status == STOPPED:
                deadline.mark_again(f"step {state.step}")
            store.event("stopped" if status == STOPPED else "done", step=state.step)
        return status


def _position(step: int, *, global_batch: int, num_samples: int) -> dict[str, float]:
    sample = step * global_batch
    return {"sample": sample, "epoch": sample / num_samples}


def _source(job: Job, latents: Latents) -> Batches:
    run = job.run
    return Batches(
        latents,
        seed=job.seed,
        global_batch=run.global_batch,
        label_dropout=run.label_dropout,
        augment=run.augment,
        times=Objective.of(run.objective).times,
    )


def _said(job: Job, latents: Latents, *, model: DiT, layout: Layout) -> dict[str, Any]:
    return facts(
        run=job.run,
        seed=job.seed,
        model=model,
        codec=latents.info["codec"],
        scale=latents.info["scale"],
        layout=layout,
        threads=torch.get_num_threads(),
    )


def _initial_model(job: Job, latents: Latents) -> DiT:
    model = fresh_model(job.run, shape=latents.shape, num_classes=latents.num_classes, seed=job.seed)
    if job.init is not None:
        start_from_run(model, job.init, weights=job.run.init_weights, codec=latents.info["codec"])
    elif job.run.init_file is not None:
        guides = job.run.guide is not None and job.run.guide.by == "start"
        start_from_file(model, Path(job.run.init_file), weights=job.run.init_weights, guides=guides)
    return model


def trainer_of(
    run: training.Run,
    group: Group,
    source: Source,
    *,
    model: DiT,
    layout: Layout,
    memory: TrainingMemory,
    gradients: training.GradientPath,
    sharding: training.Sharding,
) -> tuple[Trainer, State]:
    """Return the trainer of a model on a group, and its state at step 0."""
    start = start_of(model, run)
    strategy = Strategy(memory.wrap(model, run), layout, gradients=gradients, sharding=sharding)
    memory.join(strategy)
    with memory.paused():
        settle(strategy, source, run)
    guide = None if run.guide is None else Guide(run, model, strategy, start=start, memory=memory)
    state = state_of(model, run, strategy, home=memory.home)
    trainer = Trainer(
        run=run,
        source=source,
        strategy=strategy,
        optimizer=state.optimizer,
        ema=state.ema,
        group=group,
        memory=memory,
        guide=guide,
    )
    return trainer, state


def _place(state: State, memory: TrainingMemory, guide: Guide | None) -> None:
    """Place weights, average, moments and gradients near their cores, on huge pages; tiers place their own."""
    team = Team.of()
    log.info(team.describe())
    weights = list(state.model.parameters())
    guiding = [] if guide is None or guide.start is None else guide.start.parameters()
    gradients = [weight.flat_grad for weight in weights if hasattr(weight, "flat_grad")]
    kept = [*weights, *guiding, *state.ema.tensors(), *state.optimizer.state().values(), *gradients]
    place((tensor.detach() for tensor in kept if not memory.holds(tensor)), nodes=team.nodes)


def _resume(store: Store, state: State, *, job: Job, group: Group, saver: Saver, pace: Pace) -> None:
    """Load the newest complete checkpoint, or save step 0."""
    begun = time.monotonic()
    found: Store.Checkpoint | None = None
    if group.rank == 0:
        store.sweep()
        store.describe(job.spec)
        found = store.newest(at_most=job.until, go_back=job.go_back)
    found = group.broadcast_object(found)
    if found is None:
        log.info(f"no checkpoint in {store.folder}: starting at step 0")
        saver.save(state)
    else:
        state.take_up(found, said=saver.said)
        saver.last = state.step
        pace.save(time.monotonic() - begun)
        log.info(f"continuing from step {state.step} in {found.folder}")
    if group.rank == 0:
        store.event("started", step=state.step, until=job.until, ranks=group.size, threads=saver.said["threads"])


def _back(store: Store, state: State, *, job: Job, group: Group, saver: Saver) -> int:
    """Load the newest complete checkpoint into the state of a resumed run; return its step."""
    newest = store.newest(at_most=state.step, go_back=job.go_back) if group.rank == 0 else None
    found = group.broadcast_object(newest)
    if found is None:
        raise problem(
            f"roll-back from step {state.step}: no complete checkpoint in {store.folder}",
            got=f"damaged or removed checkpoints of steps {store.steps()}",
            expected="at least one intact checkpoint",
            fix="start again: without a checkpoint, training restarts at step 0",
        )
    state.take_up(found, said=saver.said)
    saver.last = state.step
    return state.step
