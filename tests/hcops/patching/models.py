"""Small ones of the models that others train, and theirs where they are installed; each with inputs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dithc.bench.patched.own import Decoder, Unet, Vit

Built = tuple[nn.Module, tuple[Tensor, ...]]


def vit() -> Built:
    return Vit(width=32, depth=2, heads=2, patch=4, classes=5), (torch.randn(3, 3, 16, 16),)


def unet() -> Built:
    return Unet(channels=16, times=16, heads=2), (torch.randn(2, 3, 8, 8), torch.randn(2, 16))


def decoder() -> Built:
    model = Decoder(width=32, depth=2, heads=4, groups=2, hidden=48, words=11)
    return model, (torch.randint(0, 11, (2, 9)),)


OWN: dict[str, Callable[[], Built]] = {"vit": vit, "unet": unet, "decoder": decoder}
