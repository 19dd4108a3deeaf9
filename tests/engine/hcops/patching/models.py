"""Small models with the structure of common models, and models of installed libraries, each with inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.hcops.patching.reference_models import Decoder, Vit

Built = tuple[nn.Module, tuple[Tensor, ...]]


def vit() -> Built:
    return Vit(width=32, depth=2, heads=2, patch=4, classes=5), (torch.randn(3, 3, 16, 16),)


def decoder() -> Built:
    model = Decoder(width=32, depth=2, heads=4, groups=2, hidden=48, words=11)
    return model, (torch.randint(0, 11, (2, 9)),)


def timm_vit() -> Built:
    """Return a small ViT of timm."""
    model = _library("timm").create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5
    )
    return model, (torch.randn(2, 3, 32, 32),)


def diffusers_dit() -> Built:
    """Return a small DiTTransformer2DModel of diffusers."""
    model = _library("diffusers").DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=8
    )
    return Sample(model).eval(), (torch.randn(2, 4, 8, 8), torch.tensor([3, 400]), torch.tensor([1, 2]))


def llama() -> Built:
    """Return a small Llama of transformers with grouped queries."""
    transformers = _library("transformers")
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=11, use_cache=False)  # fmt: skip
    return Sample(transformers.LlamaForCausalLM(config), "logits"), (torch.randint(0, 11, (2, 9)),)


class Sample(nn.Module):
    """Module that returns one tensor of a model's output."""

    def __init__(self, model: nn.Module, name: str = "sample") -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = getattr(self.model(*inputs), self.name)
        return found


def _library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


SMALL_MODELS: dict[str, Callable[[], Built]] = {"vit": vit, "decoder": decoder}
LIBRARY_MODELS: dict[str, Callable[[], Built]] = {
    "timm ViT": timm_vit,
    "diffusers DiTTransformer2DModel": diffusers_dit,
    "transformers Llama": llama,
}
