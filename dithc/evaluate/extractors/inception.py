"""The Inception v3 of the FID, with the weight names of the PyTorch port of the original TensorFlow graph.

It differs from the usual ImageNet Inception: the final layer has 1008 classes, average pools exclude the padding, and
the last block pools by maximum (Szegedy et al., Rethinking the Inception Architecture, 2016, sections 5 and 6, for the
blocks; Heusel et al., GANs Trained by a Two Time-Scale Update Rule, 2017, for its use). Blocks are built from a table
of branches. The name of a child in the table is its name in the state dict.

Legend: N batch, C channels, H height, W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.artifacts import sha256_file
from dithc.core.logging import user_error
from dithc.evaluate.extractors.extractor import FID_SUITE_RESIZE, Extractor, Resize, resize_images
from dithc.evaluate.extractors.weights import fill, read_state, require_file

IMAGE_SIZE = 299
NUM_FEATURES = 2048
NUM_CLASSES = 1008
IMAGES_PER_THREAD = 4  # 60% of the time of 32 images together
PUBLISHED_NAME = "pt_inception-2015-12-05-6726825d.pth"
PUBLISHED_SHA256_START = "6726825d"
HINT = (
    f"use the weights of the FID Inception, {PUBLISHED_NAME}; torchvision's Inception weights are NOT the FID weights "
    "(they have 1000 classes and AuxLogits)"
)

Pool = Literal["average", "max", "max-stride-2"]


@dataclass(frozen=True)
class Conv:
    """A convolution of a branch: child name, output channels, kernel (rows, columns), stride; only stride 1 is padded."""

    name: str
    width: int
    rows: int = 1
    columns: int = 1
    stride: int = 1
    padded: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class Branch:
    """A chain of convolutions, followed in the last blocks by two parallel convolutions (`fork`)."""

    chain: tuple[Conv, ...]
    fork: tuple[Conv, ...] = ()


class BasicConv2d(nn.Module):
    """Convolution without bias, batch normalization with epsilon 0.001, ReLU."""

    def __init__(self, width_in: int, conv: Conv) -> None:
        super().__init__()
        padding = (conv.rows // 2, conv.columns // 2) if conv.padded and conv.stride == 1 else (0, 0)
        self.conv = nn.Conv2d(width_in, conv.width, (conv.rows, conv.columns), conv.stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(conv.width, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)  # (N, C, H, W)


class Block(nn.Module):
    """Parallel branches and one pooled branch, joined over channels."""

    def __init__(self, width_in: int, branches: Sequence[Branch], *, pool: Pool, pool_width: int = 0) -> None:
        super().__init__()
        self.branches, self.pool = tuple(branches), pool
        self.width_out = 0
        for branch in branches:
            width = width_in
            for conv in branch.chain:
                self.add_module(conv.name, BasicConv2d(width, conv))
                width = conv.width
            for conv in branch.fork:
                self.add_module(conv.name, BasicConv2d(width, conv))
            self.width_out += sum(conv.width for conv in branch.fork) if branch.fork else width
        self.branch_pool = BasicConv2d(width_in, Conv("branch_pool", pool_width)) if pool_width else nn.Identity()
        self.width_out += pool_width or width_in

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for branch in self.branches:
            part = x
            for conv in branch.chain:
                part = self.get_submodule(conv.name)(part)
            parts.extend([self.get_submodule(conv.name)(part) for conv in branch.fork] or [part])
        parts.append(self.branch_pool(pool_3x3(x, self.pool)))
        return torch.cat(parts, dim=1)  # (N, width_out, H, W)


def pool_3x3(x: Tensor, pool: Pool) -> Tensor:
    """Pool 3x3 neighborhoods; averages at the border exclude the padding, as in the original graph."""
    if pool == "average":
        return functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
    if pool == "max":
        return functional.max_pool2d(x, 3, stride=1, padding=1)
    return functional.max_pool2d(x, 3, stride=2)


def _chain(name: str, *kernels: tuple[int, ...]) -> tuple[Conv, ...]:
    """Number the convolutions of a branch; a kernel has width, rows, columns and stride."""
    return tuple(Conv(f"{name}_{number}", *kernel) for number, kernel in enumerate(kernels, start=1))


def block_a(width_in: int, pool_width: int) -> Block:
    """Return a block for 35x35: 1x1, 5x5 and two 3x3."""
    branches = [
        Branch((Conv("branch1x1", 64),)),
        Branch(_chain("branch5x5", (48,), (64, 5, 5))),
        Branch(_chain("branch3x3dbl", (64,), (96, 3, 3), (96, 3, 3))),
    ]
    return Block(width_in, branches, pool="average", pool_width=pool_width)


def block_b(width_in: int) -> Block:
    """Return the block from 35x35 to 17x17."""
    double = Branch(_chain("branch3x3dbl", (64,), (96, 3, 3), (96, 3, 3, 2)))
    return Block(width_in, [Branch((Conv("branch3x3", 384, 3, 3, 2),)), double], pool="max-stride-2")


def block_c(width_in: int, width: int) -> Block:
    """Return a block for 17x17: 7x7 convolutions factored into 1x7 and 7x1."""
    single = _chain("branch7x7", (width,), (width, 1, 7), (192, 7, 1))
    double = _chain("branch7x7dbl", (width,), (width, 7, 1), (width, 1, 7), (width, 7, 1), (192, 1, 7))
    branches = [Branch((Conv("branch1x1", 192),)), Branch(single), Branch(double)]
    return Block(width_in, branches, pool="average", pool_width=192)


def block_d(width_in: int) -> Block:
    """Return the block from 17x17 to 8x8."""
    single = _chain("branch3x3", (192,), (320, 3, 3, 2))
    seven = _chain("branch7x7x3", (192,), (192, 1, 7), (192, 7, 1), (192, 3, 3, 2))
    return Block(width_in, [Branch(single), Branch(seven)], pool="max-stride-2")


def block_e(width_in: int, pool: Pool) -> Block:
    """Return a block for 8x8: branches end in parallel 1x3 and 3x1 convolutions."""
    single = Branch((Conv("branch3x3_1", 384),), (Conv("branch3x3_2a", 384, 1, 3), Conv("branch3x3_2b", 384, 3, 1)))
    double = Branch(
        (Conv("branch3x3dbl_1", 448), Conv("branch3x3dbl_2", 384, 3, 3)),
        (Conv("branch3x3dbl_3a", 384, 1, 3), Conv("branch3x3dbl_3b", 384, 3, 1)),
    )
    return Block(width_in, [Branch((Conv("branch1x1", 320),)), single, double], pool=pool, pool_width=192)


class FIDInception(nn.Module):
    """Network from pixels in [-1, 1] to 2048 features; `fc` is unused, but part of the weights file."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = BasicConv2d(3, Conv("", 32, 3, 3, 2))
        self.Conv2d_2a_3x3 = BasicConv2d(32, Conv("", 32, 3, 3, padded=False))
        self.Conv2d_2b_3x3 = BasicConv2d(32, Conv("", 64, 3, 3))
        self.Conv2d_3b_1x1 = BasicConv2d(64, Conv("", 80))
        self.Conv2d_4a_3x3 = BasicConv2d(80, Conv("", 192, 3, 3, padded=False))
        self.Mixed_5b = block_a(192, 32)
        self.Mixed_5c = block_a(256, 64)
        self.Mixed_5d = block_a(288, 64)
        self.Mixed_6a = block_b(288)
        self.Mixed_6b = block_c(768, 128)
        self.Mixed_6c = block_c(768, 160)
        self.Mixed_6d = block_c(768, 160)
        self.Mixed_6e = block_c(768, 192)
        self.Mixed_7a = block_d(768)
        self.Mixed_7b = block_e(1280, "average")
        self.Mixed_7c = block_e(2048, "max")
        self.fc = nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))  # (N, 64, 147, 147)
        x = pool_3x3(x, "max-stride-2")  # (N, 64, 73, 73)
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x))  # (N, 192, 71, 71)
        x = pool_3x3(x, "max-stride-2")  # (N, 192, 35, 35)
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))  # (N, 288, 35, 35)
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))  # (N, 768, 17, 17)
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))  # (N, 2048, 8, 8)
        return x.mean(dim=(2, 3))  # (N, 2048)


def load(path: Path, *, resize: Resize | None) -> Extractor:
    require_file(path, kind="inception", what_to_put=f"{PUBLISHED_NAME}, a state dict of about 92 MB")
    sha256 = sha256_file(path)
    published = sha256.startswith(PUBLISHED_SHA256_START)
    if path.name == PUBLISHED_NAME and not published:
        raise user_error(
            f"weights file {path} contradicts its name",
            got=f"sha256 {sha256}",
            expected=f"sha256 starting with {PUBLISHED_SHA256_START}",
            fix="copy the file again, or rename other weights",
        )
    with torch.device("meta"):
        network = FIDInception()
    network = network.to_empty(device="cpu").eval()
    fill(network, read_state(path)[0], path=path, hint=HINT)
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mode = resize or FID_SUITE_RESIZE

    def features(images: Tensor) -> Tensor:
        pixels = resize_images(images, size=IMAGE_SIZE, mode=mode) / 127.5 - 1  # (N, 3, 299, 299), -1..1
        return network(pixels.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]

    return Extractor(
        name=path.name,
        kind="inception",
        sha256=sha256,
        num_features=NUM_FEATURES,
        resize=mode,
        comparable_to_published=published,
        note="FID Inception, published weights"
        if published
        else f"Inception of unknown weights (sha256 not {PUBLISHED_SHA256_START}...): not comparable with published FID",
        network=features,
        at_once=IMAGES_PER_THREAD,
    )
