"""Work of a rank in a step in closed form: arithmetic, gradients in the order of the backward pass, buckets.

Legend: T tokens, D width, E MLP width, L blocks, C channels of the latent image, p side of a patch.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dithc.config import training
from dithc.core.logging import user_error

FP32_BYTES = 4
PRESET = re.compile(r"(Modern)?DiT-(S|B|L|XL)/[248]")
FORWARD_SHARE = 1 / 3  # of a step's arithmetic: the backward pass has twice the cost of the forward pass
PASSES = 3
NUM_FREQUENCIES = 256  # of the timestep embedding
LATENT_SIDE, LATENT_CHANNELS, LABELS = 32, 4, 1000  # of 256 x 256 images and ImageNet: the paper's setting


@dataclass(frozen=True)
class Gradient:
    """Gradient of a parameter: elements, and multiply-adds per image that precede it in the backward pass."""

    name: str
    elements: int
    adds: float = 0.0


@dataclass(frozen=True)
class Bucket:
    """Bytes of one sum, and the fraction of the backward pass after which it is ready."""

    size: int
    ready_share: float


@dataclass(frozen=True)
class ModelWorkload:
    """Arithmetic and gradients of a DiT on latents of one size."""

    model: training.ModelConfig
    tokens: int
    channels: int = LATENT_CHANNELS
    labels: int = LABELS

    @classmethod
    def of_preset(cls, preset: str) -> "ModelWorkload":
        """Return the workload of a preset on the latents of the paper; UserError for an unknown preset."""
        if not PRESET.fullmatch(preset):
            expected = "DiT or ModernDiT, a size of S, B, L, XL, and a patch of 2, 4, 8, such as DiT-S/2"
            raise user_error("preset of a network", got=preset, expected=expected, fix="correct the name")
        model = training.ModelConfig().updated(preset=preset)
        return cls(model, tokens=(LATENT_SIDE // model.patch) ** 2)

    @property
    def name(self) -> str:
        return self.model.preset

    @property
    def linear_flops(self) -> float:
        """Floating-point operations of the linear layers per image, forward and backward (687 GFLOP for XL/2)."""
        width, depth, _ = self.model.shape
        condition = 6 * depth * width**2 + NUM_FREQUENCIES * width + 3 * width**2
        ends = self.tokens * width * self.model.patch**2 * (self.channels + self._outputs)
        return PASSES * 2.0 * (self.tokens * self.model.matrix_elements + condition + ends)

    @property
    def flops(self) -> float:
        """The same with both products of attention (711.7 GFLOP for XL/2)."""
        width, depth, _ = self.model.shape
        return self.linear_flops + PASSES * 4.0 * depth * self.tokens**2 * width

    @cached_property
    def gradients(self) -> Sequence[Gradient]:
        """Gradients in the order in which PyTorch's backward pass completes them; other backends swap some."""
        return list(self._gradients())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients in fp32."""
        return FP32_BYTES * sum(gradient.elements for gradient in self.gradients)

    def buckets(self, bucket_bytes: int | None = None) -> tuple[Bucket, ...]:
        """Return the buckets of the reducer of `dithc.engine.comm`, and the time at which each is ready.

        `bucket_bytes` limits buckets of several gradients; None selects the reducer's rule.
        """
        from dithc.engine.comm import gradients  # imports torch

        sizes, whole = [gradient.elements for gradient in self.gradients], sum(one.adds for one in self.gradients)
        buckets, done = [], 0.0
        for bucket in gradients.buckets.arrange(sizes, range(len(sizes)), bucket_bytes=bucket_bytes).buckets:
            done += sum(self.gradients[number].adds for number in bucket.members)
            buckets.append(Bucket((bucket.stop - bucket.start) * FP32_BYTES, min(done / whole, 1.0)))
        return tuple(buckets)

    @property
    def _outputs(self) -> int:
        return self.channels * (2 if self.model.learn_sigma else 1)

    def _gradients(self) -> Iterator[Gradient]:
        model, tokens, patches = self.model, self.tokens, self.model.patch**2
        width, depth, heads = model.shape
        hidden, is_gated = model.mlp_width, model.block.mlp == "swiglu"

        def layer(
            name: str, rows: int, outputs: int, inputs: int, *, products: int = 2, more: float = 0.0
        ) -> Iterator[Gradient]:
            """Yield bias and weight: products for the gradients of weight and input, for a number of rows per image."""
            yield Gradient(f"{name}.bias", outputs)
            yield Gradient(f"{name}.weight", outputs * inputs, float(products * rows * outputs * inputs) + more)

        yield from layer("final_layer.linear", tokens, patches * self._outputs, width)
        yield from layer("final_layer.adaLN_modulation.1", 1, 2 * width, width)
        for number in reversed(range(depth)):
            block = f"blocks.{number}"
            yield from layer(f"{block}.mlp.fc2", tokens, width, hidden)
            yield from layer(
                f"{block}.mlp.{'gate_up' if is_gated else 'fc1'}", tokens, hidden * (2 if is_gated else 1), width
            )
            yield from layer(f"{block}.attn.proj", tokens, width, width)
            if model.block.qk_norm:
                yield Gradient(f"{block}.attn.k_norm", width // heads)
                yield Gradient(f"{block}.attn.q_norm", width // heads)
            attention = 4.0 * tokens**2 * width  # two products, with two gradients each; they precede those of qkv
            yield from layer(f"{block}.attn.qkv", tokens, 3 * width, width, more=attention)
            yield from layer(f"{block}.adaLN_modulation.1", 1, 6 * width, width)
        yield Gradient("y_embedder.embedding_table.weight", (self.labels + 1) * width)
        yield from layer("t_embedder.mlp.2", 1, width, width)
        yield from layer("t_embedder.mlp.0", 1, width, NUM_FREQUENCIES)
        yield from layer(
            "x_embedder.proj", tokens, width, patches * self.channels, products=1
        )  # no gradient of the input
