"""Work of a rank in a step: forward pass, backward pass with gradients in order, buckets, optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dithc.engine import hcops
from dithc.engine.comm import gradients as exchanged
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
class ModelWorkload:
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


def describe_model(name: str) -> ModelWorkload:
    """Describe the gradients of a preset from a model without storage, in the recorded order of a narrow twin.

    The share of a gradient includes its own product and the input gradient's. Attention counts for qkv, whose gradient
    it precedes.
    """
    with torch.device("meta"):
        model = DiT.from_preset(name)
    config, flops = model.config, flops_per_image(model.config)
    attention = (flops.forward_total - flops.forward_linear) / config.depth
    elements, work = dict[str, int](), dict[str, float]()
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rows = 1 if "adaLN" in key or "t_embedder" in key else config.num_tokens
        products = 1 if key.startswith("x_embedder") else 2  # the input requires no gradient
        is_matrix = parameter.ndim > 1 and "embedding_table" not in key
        elements[key] = parameter.numel()
        work[key] = 2.0 * products * rows * parameter.numel() if is_matrix else 0.0
        if key.endswith("attn.qkv.weight"):
            work[key] += 2 * attention
    whole = sum(work.values())
    gradients = tuple(Gradient(key, elements[key], work[key] / whole) for key in _recorded_order(name))
    return ModelWorkload(name, gradients, flops)


def _recorded_order(name: str) -> list[str]:
    """Return parameter names in the order in which PyTorch's backward pass completes them; other backends swap some."""
    twin = DiT.from_preset(name, hidden_size=8, num_heads=1, input_size=4, patch_size=2, num_classes=1)
    order: list[str] = []
    for key, parameter in twin.named_parameters():
        if parameter.requires_grad:
            record = lambda _, key=key: order.append(key)  # noqa: E731
            parameter.register_post_accumulate_grad_hook(record)  # type: ignore[no-untyped-call]
    images = torch.zeros(1, twin.config.in_channels, *twin.config.size)
    with hcops.use("reference"):
        twin(images, torch.zeros(1), torch.zeros(1, dtype=torch.long)).sum().backward()
    return order


def buckets_of(gradients: Sequence[Gradient], *, bucket_bytes: int | None = None) -> tuple[Bucket, ...]:
    """Return the buckets of the dithc.engine.comm reducer for gradients in buffer order, and when each is ready.

    `bucket_bytes` limits buckets of several gradients; None selects the reducer's rule.
    """
    sizes = [gradient.elements for gradient in gradients]
    buckets, fraction = [], 0.0
    for bucket in exchanged.buckets.arrange(sizes, range(len(sizes)), bucket_bytes=bucket_bytes).buckets:
        fraction += sum(gradients[number].share for number in bucket.members)
        buckets.append(Bucket((bucket.stop - bucket.start) * FP32_BYTES, min(fraction, 1.0)))
    return tuple(buckets)
