"""Work of a rank in a step: forward pass, backward pass with gradients in order, buckets, optimizer.

T is the number of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dithc import hcops
from dithc.comm import gradients as exchanged
from dithc.model import DiT, Flops, flops_per_image

FP32_BYTES = 4
# Share of a step's arithmetic, with one forward and a backward pass of twice the cost.
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Gradient:
    """Gradient of a parameter: elements, and fraction of the backward arithmetic."""

    name: str
    elements: int
    share: float


@dataclass(frozen=True)
class Model:
    """Gradients of a DiT in the order of the backward pass."""

    name: str
    gradients: tuple[Gradient, ...]
    flops: Flops

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in fp32."""
        return FP32_BYTES * sum(gradient.elements for gradient in self.gradients)


@dataclass(frozen=True)
class Bucket:
    """Bytes of one sum, and the fraction of the backward pass after which it is ready."""

    size: int
    ready_share: float


def describe_model(name: str, **overrides: Any) -> Model:
    """Describe the gradients of a preset.

    Shapes come from a model without storage, the gradient order from a recorded narrow twin.

    The share of a gradient includes its own product and the input gradient's. Attention counts for qkv, whose gradient
    it precedes.
    """
    with torch.device("meta"):
        model = DiT.from_preset(name, **overrides)
    config, flops = model.config, flops_per_image(model.config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    attention = (flops.forward_total - flops.forward_linear) / config.depth
    work: dict[str, float] = {}
    for parameter, shape in shapes.items():
        rows = 1 if "adaLN" in parameter or "t_embedder" in parameter else config.num_tokens
        products = 1 if parameter.startswith("x_embedder") else 2  # the input requires no gradient
        is_matrix = len(shape) > 1 and "embedding_table" not in parameter
        work[parameter] = 2.0 * products * rows * torch.Size(shape).numel() if is_matrix else 0.0
        if parameter.endswith("attn.qkv.weight"):
            work[parameter] += 2 * attention
    whole = sum(work.values())
    order = _recorded_order(name, overrides)
    gradients = tuple(Gradient(key, torch.Size(shapes[key]).numel(), work[key] / whole) for key in order)
    return Model(name, gradients, flops)


def _recorded_order(name: str, overrides: dict[str, Any]) -> list[str]:
    """Return parameter names in the order in which PyTorch's backward pass completes them; other backends swap some."""
    small = {"hidden_size": 8, "num_heads": 1, "input_size": 4, "patch_size": 2, "num_classes": 1}
    twin = DiT.from_preset(name, **{**overrides, **small})
    seen: list[str] = []
    for key, parameter in twin.named_parameters():
        if parameter.requires_grad:
            note = partial(_append, seen, key)
            parameter.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
    images = torch.zeros(1, twin.config.in_channels, *twin.config.size)
    with hcops.use("reference"):
        twin(images, torch.zeros(1), torch.zeros(1, dtype=torch.long)).sum().backward()
    return seen


def _append(seen: list[str], key: str, _: Tensor) -> None:
    seen.append(key)


def buckets_of(gradients: Sequence[Gradient], *, bucket_bytes: int | None = None) -> tuple[Bucket, ...]:
    """Return the buckets of the dithc.comm reducer and when each is ready.

    `gradients` are in buffer order.

    `bucket_bytes` limits buckets of several gradients; None selects the reducer's rule.
    """
    sizes = [gradient.elements for gradient in gradients]
    found = []
    done = 0.0
    for bucket in exchanged.buckets.arrange(sizes, range(len(sizes)), bucket_bytes=bucket_bytes).buckets:
        done += sum(gradients[number].share for number in bucket.members)
        found.append(Bucket((bucket.stop - bucket.start) * FP32_BYTES, min(done, 1.0)))
    return tuple(found)
