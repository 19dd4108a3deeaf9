"""Averages of any length, combined from the stored averages of a run (Karras et al. 2024, section 3.2).

Legend: K stored averages.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import get_logger, user_error
from dithc.core.posthoc_ema import PowerFunctionProfile, combine_profiles
from dithc.core.tensor_files import read_tensors

NEGLIGIBLE = 2.0**-24  # smaller shares do not change any fp32 weight
log = get_logger(__name__)


def average_of(
    store: CheckpointStore,
    checkpoint: CheckpointStore.Checkpoint,
    *,
    length: float,
    snapshots: Sequence[int],
    manifest: Path,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Combine stored averages up to `checkpoint` into the best approximation of an average of relative length `length`.

    `snapshots` are the steps of the summed checkpoints, unless they are later; `manifest` is the run's. Returns fp32
    weights by name; and `ema_std`, `ema_misfit` (of the profile, relative) and `ema_snapshots`. Raises UserError if a
    checkpoint is missing or damaged, or has no averages of several lengths.
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
    steps = sorted({step, *(one for one in snapshots if one <= step)})
    if missing := sorted(set(steps) - set(store.steps())):
        raise user_error(
            f"average of length {length} at step {step}: {len(missing)} of {len(steps)} checkpoints are missing",
            got=f"checkpoints of steps {', '.join(map(str, store.steps())) or 'none'} in {store.folder}",
            expected=f"also {', '.join(map(str, missing[:10]))}{' and so on' if len(missing) > 10 else ''}",
            fix="restore the `keep_every` of the training run, omit `ema_std` in the evaluation, or "
            f"delete {manifest} and that folder to train again",
        )
    stored = [PowerFunctionProfile(one, each) for one in steps for each in lengths]
    found = combine_profiles(PowerFunctionProfile(step, length), stored)
    sums: dict[str, Tensor] = {}
    for profile, share in zip(stored, found.shares, strict=True):
        if abs(share) <= NEGLIGIBLE:
            continue
        file = CheckpointStore.average_file(profile.length)
        folder = store.open(profile.step, manifest=manifest, files=[file]).folder  # verifies the bytes
        for name, value in read_tensors(folder / file).items():
            if name in sums:
                sums[name].add_(value, alpha=share)
            else:
                sums[name] = value.to(torch.float64).mul_(share)
    log.info(
        f"average of length {length} at step {step}: lengths {lengths} of {len(steps)} checkpoint(s), "
        f"relative profile error {found.misfit:.2g}"
    )
    weights = {name: sums.pop(name).float() for name in list(sums)}
    return weights, {"ema_std": length, "ema_misfit": found.misfit, "ema_snapshots": len(steps)}
