"""Models of timm, diffusers and transformers with random weights, in sizes that a laptop can train."""

from functools import partial
from importlib import import_module
from typing import Any


def _make(package: str, name: str, *arguments: Any, **settings: Any) -> Any:
    """Build an object of a package, which is imported only then."""
    return getattr(import_module(package), name)(*arguments, **settings)


vit = partial(_make, "timm", "create_model", "vit_small_patch16_224")
"""timm's ViT-S/16."""
unet = partial(
    _make,
    "diffusers",
    "UNet2DModel",
    sample_size=32,
    block_out_channels=(64, 128, 256, 256),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
)
"""diffusers' UNet2DModel, with attention at two of four resolutions."""
dit = partial(_make, "diffusers", "DiTTransformer2DModel", num_attention_heads=6, attention_head_dim=64, num_layers=12,
              in_channels=4, out_channels=4, sample_size=32, patch_size=2)  # fmt: skip
"""diffusers' DiTTransformer2DModel in the size of DiT-S/2."""


def siglip() -> Any:
    """Build the vision part of transformers' Siglip in the size of ViT-S/16."""
    config = _make("transformers", "SiglipVisionConfig", hidden_size=384, intermediate_size=1536, num_attention_heads=6)
    return _make("transformers", "SiglipVisionModel", config)


def llama() -> Any:
    """Build transformers' Llama with 26 million parameters and grouped queries."""
    config = _make("transformers", "LlamaConfig", hidden_size=512, intermediate_size=1376, num_hidden_layers=8,
                 num_attention_heads=8, num_key_value_heads=2, vocab_size=4096, use_cache=False)  # fmt: skip
    return _make("transformers", "LlamaForCausalLM", config)
