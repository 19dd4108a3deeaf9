"""Small models with the structure of common models, and models of installed libraries, each with inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dithc.bench.patched.own import Attention, Decoder, Vit

Built = tuple[nn.Module, tuple[Tensor, ...]]


class Residual(nn.Module):
    """GroupNorm, SiLU and convolution, with a time embedding."""

    def __init__(self, channels: int, times: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(times, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = x + self.conv(F.silu(self.norm(x))) + self.time(F.silu(time))[:, :, None, None]
        return out


class Unet(nn.Module):
    """One step down and one up, with attention between (Ho et al. 2020, appendix B)."""

    def __init__(self, *, channels: int = 64, times: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
        self.down, self.up = Residual(channels, times), Residual(channels, times)
        self.norm, self.attention = nn.GroupNorm(4, channels), Attention(channels, heads)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        high = self.down(self.first(x), time)  # (N, C, height, width)
        low = F.avg_pool2d(high, 2)
        tokens = self.norm(low).flatten(2).transpose(1, 2)  # (N, T, C)
        low = low + self.attention(tokens).transpose(1, 2).reshape(low.shape)
        out: Tensor = self.last(self.up(high + F.interpolate(low, scale_factor=2), time))
        return out


def vit() -> Built:
    return Vit(width=32, depth=2, heads=2, patch=4, classes=5), (torch.randn(3, 3, 16, 16),)


def unet() -> Built:
    return Unet(channels=16, times=16, heads=2), (torch.randn(2, 3, 8, 8), torch.randn(2, 16))


def decoder() -> Built:
    model = Decoder(width=32, depth=2, heads=4, groups=2, hidden=48, words=11)
    return model, (torch.randint(0, 11, (2, 9)),)


def timm_vit() -> Built:
    """Return a small ViT of timm."""
    timm = pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_classes=5)
    return model, (torch.randn(2, 3, 32, 32),)


def diffusers_unet() -> Built:
    """Return a small UNet2DModel of diffusers."""
    settings = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    model = _diffusers().UNet2DModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, **settings
    )
    return Sample(model), (torch.randn(2, 3, 8, 8), torch.tensor([3, 400]))


def diffusers_dit() -> Built:
    """Return a small DiTTransformer2DModel of diffusers."""
    model = _diffusers().DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=8
    )
    return Sample(model).eval(), (torch.randn(2, 4, 8, 8), torch.tensor([3, 400]), torch.tensor([1, 2]))


def siglip() -> Built:
    """Return a small Siglip vision model of transformers."""
    transformers = _transformers()
    config = transformers.SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
    )
    return Sample(transformers.SiglipVisionModel(config), "pooler_output"), (torch.randn(2, 3, 32, 32),)


def llama() -> Built:
    """Return a small Llama of transformers with grouped queries."""
    transformers = _transformers()
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


def _diffusers() -> Any:
    return pytest.importorskip("diffusers", reason="diffusers is not installed", exc_type=ImportError)


def _transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed", exc_type=ImportError)


OWN: dict[str, Callable[[], Built]] = {"vit": vit, "unet": unet, "decoder": decoder}
THEIRS: dict[str, Callable[[], Built]] = {
    "timm ViT": timm_vit,
    "diffusers UNet2DModel": diffusers_unet,
    "diffusers DiTTransformer2DModel": diffusers_dit,
    "transformers Siglip": siglip,
    "transformers Llama": llama,
}
