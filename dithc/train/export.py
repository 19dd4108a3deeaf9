"""Writes a checkpoint's weights for other programs: one safetensors file, or a file as the original DiT code reads it."""

from pathlib import Path
from typing import Any, Literal

import torch

from dithc.log import logger, problem
from dithc.runs import Store, replacing
from dithc.train.checkpoint import read_tensors, write_tensors

log = logger(__name__)


def export(
    manifest: Path, *, weights: Literal["ema", "raw"], layout: Literal["safetensors", "official"], out: Path
) -> dict[str, Any]:
    """Exports the checkpoint that a run's manifest names; parameter names are the official ones in both layouts.

    Args:
        manifest: of a run (stage `train`).
        weights: the averaged or the raw weights.
        layout: `safetensors` holds the chosen weights. `official` is written by torch.save: with the averaged weights the
            dictionary {"model": raw, "ema": averaged}, of which the original code takes the latter; with the raw
            weights the bare state, as released files are, since from a dictionary the average would be taken.
        out: the file to write; it appears whole or not at all.

    Returns:
        step, tensors, bytes, and the model's settings.

    Raises:
        UserError: the checkpoint is damaged, or the file cannot be written.
    """
    store, step = Store.of_run(manifest)
    checkpoint = store.open(step, manifest=manifest)
    chosen = read_tensors(checkpoint.weights(weights))
    try:
        with replacing(out) as temporary:
            if layout == "safetensors":
                write_tensors(temporary, chosen)
            else:
                both = {"model": read_tensors(checkpoint.weights("raw")), "ema": chosen}
                torch.save(both if weights == "ema" else chosen, temporary)
    except (OSError, RuntimeError) as error:  # torch.save wraps the system's error in a RuntimeError
        raise problem(
            f"weights could not be written to {out}",
            got=error,
            expected="a writable folder with room for them",
            remedy="free space or choose another --out",
        ) from error
    log.info(f"{weights} weights of step {step} written to {out} ({layout})")
    return {"step": step, "tensors": len(chosen), "bytes": out.stat().st_size, "model": checkpoint.meta["model"]}
