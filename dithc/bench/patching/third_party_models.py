"""Models of timm, diffusers and transformers with random weights, in sizes that a laptop can train."""

from importlib import import_module
from typing import Any

from torch import nn


def vit() -> nn.Module:
    """Build timm's ViT-S/16."""
    model: nn.Module = import_module("timm").create_model("vit_small_patch16_224")
    return model


def unet() -> nn.Module:
    """Build diffusers' UNet2DModel, with attention at two of four resolutions."""
    model: nn.Module = _of(
        "diffusers",
        "UNet2DModel",
        sample_size=32,
        block_out_channels=(64, 128, 256, 256),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    return model


def dit() -> nn.Module:
    """Build diffusers' DiTTransformer2DModel in the size of DiT-S/2."""
    model: nn.Module = _of("diffusers", "DiTTransformer2DModel", num_attention_heads=6, attention_head_dim=64, num_layers=12,
               in_channels=4, out_channels=4, sample_size=32, patch_size=2)  # fmt: skip
    return model


def siglip() -> nn.Module:
    """Build the vision part of transformers' Siglip in the size of ViT-S/16."""
    config = _of("transformers", "SiglipVisionConfig", hidden_size=384, intermediate_size=1536, num_attention_heads=6)
    model: nn.Module = _of("transformers", "SiglipVisionModel", config)
    return model


def llama() -> nn.Module:
    """Build transformers' Llama with 26 million parameters and grouped queries."""
    config = _of("transformers", "LlamaConfig", hidden_size=512, intermediate_size=1376, num_hidden_layers=8,
                 num_attention_heads=8, num_key_value_heads=2, vocab_size=4096, use_cache=False)  # fmt: skip
    model: nn.Module = _of("transformers", "LlamaForCausalLM", config)
    return model


def _of(package: str, name: str, *arguments: Any, **settings: Any) -> Any:
    return getattr(import_module(package), name)(*arguments, **settings)
