"""Guidance: combination of a model, labels (or other conditions) and a scale into a `denoise` callable.

Legend: N batch, C channels.
Sources: Ho & Salimans 2022, equation 6, in the form uncond + scale * (cond - uncond). An early checkpoint of the model with
the same labels instead of uncond: Karras et al. 2024 (arXiv 2406.02507). Guidance in an interval: Kynkaanniemi et al. 2024
(arXiv 2404.07724).
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from dithc.core.logging import user_error

Denoise = Callable[[Tensor, Tensor], Tensor]
"""(x (N, C, h, w), timesteps (N)) -> model output (N, C or 2C, h, w)."""

Model = Callable[[Tensor, Tensor, Any], Tensor]
"""(x (N, C, h, w), timesteps (N), labels (N) or another condition) -> output (N, C or 2C, h, w)."""

Channels = Literal["all", "first3"]
FIRST = 3
ABSENT: Any = object()  # None may be a condition


def guided_denoiser(
    model: Model,
    labels: Any,
    *,
    null_label: int | None = None,
    null: Any = ABSENT,
    scale: float,
    channels: Channels = "all",
    guide: Model | None = None,
    interval: tuple[float, float] | None = None,
    both: "Both | None" = None,
) -> Denoise:
    """Return `denoise(x, t)` with classifier-free or model guidance; both halves of one model run in one batch.

    Args:
        model: (x, t, y) -> output, C or 2C channels.
        labels: (N) int classes, or any other condition, such as embeddings (N, L, D).
        null_label: Label of no class; may be None at scale 1, and with a guide. It replaces the first column of labels
            (N, 1 + K) with further conditions, which both predictions keep.
        null: Null condition that is not a label: a tensor for one or all images, or another value (None, a tuple),
            which runs as a separate call.
        scale: 1 runs the model once on the labels; larger values move away from the unlabeled prediction.
        channels: Guided channels of the noise: all, or the first three as in the released DiT samples and their
            published FID (1.5 on three channels scores about as 1.375 on all four). Other channels and a learned
            variance keep the labeled half.
        guide: Model of the prediction to move away from, on the same labels (autoguidance).
        interval: Lowest and highest guided timestep, inclusive; None for all. It requires one timestep for all images.
        both: Runs the two calls if they are not one batch, for ranks that share them; None runs them one after the
            other.

    Raises:
        UserError: `channels` is unknown, guidance lacks a null label, or a null condition has another shape or is given
            twice.
    """
    if channels not in ("all", "first3"):
        raise user_error("guided channels", got=repr(channels), expected="all or first3", fix="choose one of the two")
    if scale == 1.0:
        return lambda x, t: model(x, t, labels)
    null_labels = _null_condition(labels, null_label, null) if guide is None else labels
    if null_labels is ABSENT:
        raise user_error(
            "classifier-free guidance",
            got=f"scale {scale} on a model without a null label",
            expected="a model trained with label dropout",
            fix="train with class_dropout_prob above 0, or sample with scale 1",
        )
    if guide is None and isinstance(null_labels, Tensor):
        halves = _batched(model, labels, null_labels)
    else:
        halves = _separate(model, guide or model, labels, null_labels, both)
    low, high = (-math.inf, math.inf) if interval is None else interval

    def denoise(x: Tensor, t: Tensor) -> Tensor:
        if not low <= float(t[0]) <= high:
            return model(x, t, labels)
        conditional, unconditional = halves(x, t)
        stop = x.shape[1] if channels == "all" else min(FIRST, x.shape[1])
        noise = unconditional[:, :stop] + scale * (conditional[:, :stop] - unconditional[:, :stop])
        return torch.cat([noise, conditional[:, stop:]], dim=1)  # (N, C or 2C, h, w)

    return denoise


Both = Callable[[Callable[[], Tensor], Callable[[], Tensor]], tuple[Tensor, Tensor]]
"""Two calls -> their results."""

Halves = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(x (N, C, h, w), timesteps (N)) -> the outputs to move to and to move away from, (N, C or 2C, h, w) each."""


def _null_condition(labels: Any, null_label: int | None, null: Any) -> Any:
    """Return the null condition of each image; ABSENT if it does not exist."""
    if null_label is not None:
        if null is not ABSENT:
            fix = "pass the null condition of the model's training"
            raise user_error("null conditions", got="both `null_label` and `null`", expected="one", fix=fix)
        if labels.dim() == 1:
            return torch.full_like(labels, null_label)  # (N)
        return torch.cat([torch.full_like(labels[:, :1], null_label), labels[:, 1:]], dim=1)  # (N, 1 + K)
    if not (isinstance(null, Tensor) and isinstance(labels, Tensor)):
        return null
    if tuple(null.shape) not in {labels.shape[1:], (1, *labels.shape[1:]), labels.shape}:
        expected = f"{tuple(labels.shape[1:])}, for one image, or {tuple(labels.shape)}"
        fix = "pass it in the shape of the conditions"
        raise user_error("shape of the null condition", got=tuple(null.shape), expected=expected, fix=fix)
    return null.to(labels).expand_as(labels)  # (N, ...)


def _batched(model: Model, labels: Tensor, null: Tensor) -> Halves:
    both_labels = torch.cat([labels, null])  # (2N, ...)

    def halves(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        conditional, unconditional = model(torch.cat([x, x]), torch.cat([t, t]), both_labels).chunk(2)
        return conditional, unconditional

    return halves


def _separate(model: Model, guide: Model, labels: Any, null: Any, both: Both | None) -> Halves:
    run = both or (lambda first, second: (first(), second()))
    return lambda x, t: run(lambda: model(x, t, labels), lambda: guide(x, t, null))
