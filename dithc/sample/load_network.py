"""The sampled network: trained, at the start of training, or with untrained initial weights."""

from dataclasses import replace
from typing import Any

import torch

from dithc.config import evaluations
from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.tensor_files import read_tensors
from dithc.model import DiT, DiTConfig
from dithc.sample.job import SamplingJob

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
        path = checkpoint.weights(evaluation.weights)
        try:
            model.load_state_dict(read_tensors(path))
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
    evaluation = job.evaluation.updated(checkpoint=guide, guidance_reference=None)
    return load_network(replace(job, evaluation=evaluation))[0]


def describe(evaluation: evaluations.EvaluationConfig, *, step: int) -> str:
    if evaluation.checkpoint == "codec":
        return "reconstructions of real tiles"
    if evaluation.checkpoint == "untrained":
        return "untrained initial weights"
    return f"{'averaged' if evaluation.weights == 'ema' else 'raw'} weights of step {step}"
