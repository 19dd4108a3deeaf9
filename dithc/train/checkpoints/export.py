"""Export of a checkpoint's weights: safetensors, the original DiT code, or diffusers."""

import json
from pathlib import Path
from typing import Any, Literal

import torch

from dithc.config import training
from dithc.core.artifacts import CheckpointStore, outputs
from dithc.core.logging import get_logger, unwritten, user_error
from dithc.core.tensor_files import read_tensors, write_tensors
from dithc.core.weights import DIFFUSERS_FILE, files_of
from dithc.model import DiTConfig, diffusers_keys
from dithc.train.checkpoints.weights import CONFIG_FILE, FREQUENCIES, network_kind

Layout = Literal["safetensors", "official", "diffusers"]
SAME_FREQUENCIES = "block.norm1.emb.time_proj.downscale_freq_shift = 0"
# Scheduler settings of diffusers for a flow.
SCHEDULER = "prediction_type: flow_prediction, use_flow_sigmas: true (for example DPMSolverMultistepScheduler)"
log = get_logger(__name__)


def export(manifest: Path, *, weights: Literal["ema", "raw"], layout: Layout, out: Path) -> dict[str, Any]:
    """Export the checkpoint of a run's manifest atomically to `out`.

    Args:
        weights: averaged (`ema`) or raw weights.
        layout: `safetensors` holds the chosen weights under the official names. `official` is written by torch.save:
            averaged weights as {"model": raw, "ema": averaged}, raw weights as a plain state dictionary (as a
            dictionary only if the network does not predict noise). `diffusers` is a folder for
            `DiTTransformer2DModel.from_pretrained`.
        out: file or folder to write.

    Returns:
        step, tensors, bytes (of the weights), prediction type and model settings.

    Raises:
        UserError: the checkpoint is damaged, the other program cannot hold the model, or `out` cannot be written.
    """
    store, step = CheckpointStore.of_run(manifest)
    checkpoint = store.open(step, manifest=manifest)
    config = DiTConfig(**checkpoint.meta["model"])
    given = [name for name, _ in config.conditions] + [name for name, _, _ in config.band_groups]
    given += ["the Gaussian prediction"] * config.gaussian_prediction
    if given and layout != "safetensors":
        raise user_error(
            "other programs do not support parts of this network",
            got=", ".join(given),
            expected="a network with labels only, without a Gaussian prediction",
            fix="export it as safetensors",
        )
    settings = diffusers_keys.settings(config) if layout == "diffusers" else {}
    if config.block != training.BlockKind():
        _check_blocks(config, layout)
    predicts = training.ObjectiveConfig(**checkpoint.meta["objective"]).prediction_type
    kind = network_kind(predicts, config.block)
    outputs.OutputFolder(out).check() if layout == "diffusers" else outputs.check_file(out)
    tensors = dict(read_tensors(checkpoint.weights(weights)))
    if layout == "diffusers":
        tensors = diffusers_keys.to_diffusers(tensors, config)
    try:
        with outputs.OutputFolder(out).replaced() if layout == "diffusers" else outputs.replacing(out) as temporary:
            if layout == "safetensors":
                write_tensors(temporary, tensors, metadata=kind)
            elif layout == "official":
                pair = {"model": dict(read_tensors(checkpoint.weights("raw"))), "ema": tensors}
                single = {"model": tensors, **kind} if kind else tensors
                torch.save(pair | kind if weights == "ema" else single, temporary)
            else:
                (temporary / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n")
                write_tensors(temporary / DIFFUSERS_FILE, tensors, metadata=kind)
    except (OSError, RuntimeError) as error:  # torch.save wraps the system's error in a RuntimeError
        raise unwritten("weights", out, error, fix="free space or choose another --out") from error
    log.info(f"{weights} weights of step {step} written to {out} ({layout})")
    if layout == "diffusers":
        log.warning(
            f"{FREQUENCIES}. For the outputs of this model set {SAME_FREQUENCIES} for each block of "
            "model.transformer_blocks after loading"
        )
    if predicts != "noise":
        log.warning(
            f"the network predicts {predicts}, which other programs do not read from the file: programs that expect "
            f"noise cannot use it; diffusers' DiTPipeline can, with a scheduler of {SCHEDULER}"
        )
    size = files_of(out)[0].stat().st_size
    numbers = {"step": step, "tensors": len(tensors), "bytes": size, "predicts": predicts}
    return numbers | {"model": checkpoint.meta["model"]}


def _check_blocks(config: DiTConfig, layout: Layout) -> None:
    """Reject the official layout for blocks that the original code lacks (UserError), and warn for other layouts."""
    if layout == "official":
        raise user_error(
            "the original DiT code does not support these blocks",
            got=config.block,
            expected=training.BlockKind(),
            fix="export it as safetensors",
        )
    log.warning(
        f"the network has blocks of {config.block}, which other programs do not read from the file: configure them"
    )
