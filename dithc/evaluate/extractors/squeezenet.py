"""SqueezeNet v1.0 trained by Caffe on ImageNet: a small feature extractor with distances that differ in scale from FID.

Iandola et al., SqueezeNet: AlexNet-level accuracy with 50x fewer parameters, 2016, table 1. Weights keep their Caffe
names.

Legend: N batch, C channels, H height, W width.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.artifacts import sha256_file
from dithc.evaluate.extractors.extractor import Extractor, Resize, resize_images
from dithc.evaluate.extractors.weights import fill, read_state, require_file

IMAGE_SIZE = 227
# Tiles are enlarged, so the kernel matters: bilinear instead of bicubic changes features of 64-px tiles by 12%.
RESIZE: Resize = "clean"
NUM_FEATURES = 512
# A third of the time of 64 images together: activations of the first layers need 5 MB per image.
IMAGES_PER_THREAD = 4
NUM_CLASSES = 1000
BGR_MEAN = (104.0, 117.0, 123.0)
FIRES = {2: (96, 16, 64), 3: (128, 16, 64), 4: (128, 32, 128), 5: (256, 32, 128)} | {
    6: (256, 48, 192),
    7: (384, 48, 192),
    8: (384, 64, 256),
    9: (512, 64, 256),
}  # number: channels in, squeezed to, out of each of the two expansions
POOLED_AFTER = (4, 8)


class Fire(nn.Module):
    """Squeeze by 1x1, expand by 1x1 and by 3x3, joined over channels."""

    def __init__(self, width_in: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.conv1x1_1 = nn.Conv2d(width_in, squeezed, 1)
        self.conv1x1_2 = nn.Conv2d(squeezed, expanded, 1)
        self.conv3x3_2 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1x1_1(x))  # (N, squeezed, H, W)
        return functional.relu(torch.cat([self.conv1x1_2(x), self.conv3x3_2(x)], dim=1))  # (N, 2 expanded, H, W)


class SqueezeNet(nn.Module):
    """Network from RGB pixels 0..255 of 227x227 to the 512 feature maps of fire9; `conv_final` returns class scores."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 96, 7, stride=2)
        for number, widths in FIRES.items():
            self.add_module(f"fire{number}", Fire(*widths))
        # Padding 1 on a 1x1 kernel is a property of Caffe: it adds a border of bias-only scores to the average over positions.
        self.conv_final = nn.Conv2d(NUM_FEATURES, NUM_CLASSES, 1, padding=1)
        self.register_buffer("mean", torch.tensor(BGR_MEAN).view(1, 3, 1, 1), persistent=False)

    def maps(self, pixels: Tensor) -> Tensor:
        """Return feature maps of fire9 (N, 512, 13, 13) of RGB pixels 0..255 (N, 3, 227, 227)."""
        x = pixels.flip(1) - self.mean  # (N, 3, 227, 227), BGR
        x = _pool(functional.relu(self.conv1(x)))  # (N, 96, 55, 55)
        for number in FIRES:
            x = self.get_submodule(f"fire{number}")(x)
            x = _pool(x) if number in POOLED_AFTER else x
        return x  # (N, 512, 13, 13)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.maps(pixels).mean(dim=(2, 3))  # (N, 512)

    def scores(self, pixels: Tensor) -> Tensor:
        """Return ImageNet class scores before softmax (N, 1000)."""
        return functional.relu(self.conv_final(self.maps(pixels))).mean(dim=(2, 3))


def _pool(x: Tensor) -> Tensor:
    """Max-pool 3/2; Caffe rounds the number of windows up."""
    return functional.max_pool2d(x, 3, stride=2, ceil_mode=True)


def load_network(path: Path) -> SqueezeNet:
    """Return the network with weights of a safetensors file, in evaluation mode."""
    require_file(path, kind="squeezenet", what_to_put="a safetensors file of Caffe's SqueezeNet v1.0, about 5 MB")
    state, _ = read_state(path)
    network = SqueezeNet().eval()
    weights = {name.replace("/", "."): value for name, value in state.items()}
    fill(network, weights, path=path, hint="use SqueezeNet v1.0 with Caffe's layer names (fire2/conv1x1_1.weight, ...)")
    return network


def load(path: Path, *, resize: Resize | None) -> Extractor:
    network = load_network(path).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mode = resize or RESIZE

    def features(images: Tensor) -> Tensor:
        pixels = resize_images(images, size=IMAGE_SIZE, mode=mode)  # (N, 3, 227, 227)
        return network(pixels.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]

    return Extractor(
        name=path.name,
        kind="squeezenet",
        sha256=sha256_file(path),
        num_features=NUM_FEATURES,
        resize=mode,
        note="SqueezeNet v1.0 features: not on the Inception scale, not comparable with published FID",
        network=features,
        at_once=IMAGES_PER_THREAD,
    )
