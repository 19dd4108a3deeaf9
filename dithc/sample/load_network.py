"""The sampled network: trained, at the start of training, or with untrained initial weights."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.posthoc_ema import PowerFunctionProfile, combine_profiles
from dithc.core.tensor_files import read_tensors
from dithc.model import DiT, DiTConfig
from dithc.sample.job import SamplingJob

NEGLIGIBLE = 2.0**-24  # smaller shares of an average do not change any fp32 weight
log = get_logger(__name__)


def load_network(job: SamplingJob) -> tuple[DiT, dict[str, Any]]:
    """Return the network of an evaluation and the metadata of its checkpoint.

    `final` is the step of the run's manifest, `start` step 0 of the same training run (for fine-tuning: the adapted
    pre-trained weights), `untrained` the initial weights from the run's seed, and a number the step of that number.
    Raises UserError if the checkpoint is missing or damaged.
    """
    evaluation = job.evaluation
    assert job.checkpoint is not None
    store, last = CheckpointStore.of_run(job.checkpoint)
    steps = {"final": last, "start": 0, "untrained": 0}
    step = evaluation.checkpoint if isinstance(evaluation.checkpoint, int) else steps[evaluation.checkpoint]
    if step not in (0, last, *store.steps()):
        raise user_error(
            f"evaluation {job.name} needs step {step}, but its checkpoint was not kept",
            got=f"checkpoints of steps {', '.join(map(str, store.steps())) or 'none'} in {store.folder}",
            expected=f"a checkpoint of step {step}",
            fix=f"evaluate one of these, or delete {job.checkpoint} and that folder to retrain with `keep_every`",
        )
    checkpoint = store.open(step, manifest=job.checkpoint)
    meta = checkpoint.meta
    with torch.random.fork_rng():
        torch.manual_seed(meta["seed"])
        model = DiT(DiTConfig(**meta["model"]))
    if evaluation.checkpoint != "untrained":
        path, averaged = checkpoint.weights(evaluation.weights), None
        if evaluation.ema_std is not None:
            averaged, meta["average"] = _average_of(store, checkpoint, job, length=evaluation.ema_std)
        try:
            model.load_state_dict(averaged or read_tensors(path))
        except (UserError, RuntimeError) as error:
            raise user_error(
                f"weights {path} do not fit the model in their checkpoint.json",
                got=error,
                expected="the weights written together with checkpoint.json",
                fix=f"delete {job.checkpoint} and the folder {store.folder}, then rerun the workflow to retrain",
            ) from error
    log.info(f"sampling {describe(evaluation, step=checkpoint.step)} from {checkpoint.folder}")
    return model.eval(), meta


def load_guide(job: SamplingJob) -> DiT | None:
    """Return the network that guidance moves away from, if it differs from the sampled network."""
    guide = job.evaluation.guidance_reference
    if guide is None:
        return None
    log.info("sampling two networks; the first is the guide")
    evaluation = job.evaluation.updated(checkpoint=guide, ema_std=None, guidance_reference=None)
    return load_network(replace(job, evaluation=evaluation))[0]


def describe(evaluation: evaluations.EvaluationConfig, *, step: int) -> str:
    if evaluation.checkpoint == "codec":
        return "reconstructions of real tiles"
    if evaluation.checkpoint == "untrained":
        return "untrained initial weights"
    length = "" if evaluation.ema_std is None else f" (length {evaluation.ema_std})"
    return f"{'averaged' if evaluation.weights == 'ema' else 'raw'} weights{length} of step {step}"


def _average_of(
    store: CheckpointStore, checkpoint: CheckpointStore.Checkpoint, job: SamplingJob, *, length: float
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Combine stored averages up to `checkpoint` into the best approximation of an average of relative length `length`.

    Later snapshots of the job are ignored. Returns fp32 weights by name; and `ema_std`, `ema_fit_error` (of the profile,
    relative) and `ema_snapshots`. Raises UserError if a checkpoint is missing or damaged, or has no averages of several
    lengths. Source: Karras et al. 2024, section 3.2.
    """
    lengths = checkpoint.meta["ema"].get("stds")
    if not lengths:
        raise user_error(
            f"average of length {length} is not available in {store.folder}",
            got="checkpoints without averages of several lengths",
            expected="two averages per checkpoint, as specified by `ema.stds` of the run",
            fix="pass the manifest of a run that has `ema.stds`, or omit `ema_std` in the evaluation",
        )
    step = checkpoint.step
    steps = sorted({step, *(snapshot for snapshot in job.snapshots if snapshot <= step)})
    if missing := sorted(set(steps) - set(store.steps())):
        raise user_error(
            f"average of length {length} at step {step}: {len(missing)} of {len(steps)} checkpoints are missing",
            got=f"checkpoints of steps {', '.join(map(str, store.steps())) or 'none'} in {store.folder}",
            expected=f"also {', '.join(map(str, missing[:10]))}{' and so on' if len(missing) > 10 else ''}",
            fix="restore the `keep_every` of the training run, omit `ema_std` in the evaluation, or "
            f"delete {job.checkpoint} and that folder to train again",
        )
    stored = [PowerFunctionProfile(snapshot, stored_length) for snapshot in steps for stored_length in lengths]
    combination = combine_profiles(PowerFunctionProfile(step, length), stored)
    sums: dict[str, Tensor] = {}
    for profile, share in zip(stored, combination.shares, strict=True):
        if abs(share) <= NEGLIGIBLE:
            continue
        file = CheckpointStore.average_file(profile.length)
        folder = store.open(profile.step, manifest=job.checkpoint, files=[file]).folder  # verifies the bytes
        for name, value in read_tensors(folder / file).items():
            if name in sums:
                sums[name].add_(value, alpha=share)
            else:
                sums[name] = value.to(torch.float64).mul_(share)
    log.info(
        f"average of length {length} at step {step}: lengths {lengths} of {len(steps)} checkpoint(s), "
        f"relative profile error {combination.misfit:.2g}"
    )
    weights = {name: sums.pop(name).float() for name in list(sums)}
    return weights, {"ema_std": length, "ema_fit_error": combination.misfit, "ema_snapshots": len(steps)}
