"""Common record of feature extractors: identity, inputs, outputs, and the two resize modes.

Legend: N batch, H height, W width, d features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dithc.core.logging import user_error
from dithc.evaluate.statistics import FeatureOrigin

Kind = Literal["inception", "squeezenet", "torchscript", "classifier"]
Resize = Literal["legacy-pytorch", "clean", "none"]

FID_SUITE_RESIZE: Resize = "legacy-pytorch"


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """A frozen network that turns images into feature vectors, and its identity.

    Attributes:
        name: name of the weights file, or of the extractor of an installed package.
        kind: network type, of `Kind` or of an installed package.
        sha256: hash of the weights file, or of settings, version and files of an installed package.
        num_features: d, the length of a feature vector.
        resize: conversion of images to the input size of the network; `none` if the network accepts any size.
        comparable_to_published: whether its FID is comparable with published FID.
        note: one sentence to print with its scores.
        network: function from float or uint8 images (N, 3, H, W) to features (N, d), under inference mode.
        at_once: images per thread in one call, few enough that activations stay in the caches; None for no limit.
    """

    name: str
    kind: str
    sha256: str
    num_features: int
    resize: Resize = "none"
    comparable_to_published: bool = False
    note: str
    network: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    at_once: int | None = None

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return finite float32 features (N, d) of uint8 RGB images (N, 3, H, W).

        Raises:
            UserError: the network returns NaN, infinity or another shape.
        """
        with torch.inference_mode():
            pixels = torch.from_numpy(np.array(images))  # (N, 3, H, W), a copy: memory maps are read-only
            batch = self.at_once * torch.get_num_threads() if self.at_once else max(1, len(pixels))
            features = torch.cat([self.network(part).float() for part in torch.split(pixels, batch)]).numpy()  # (N, d)
        if features.shape != (len(images), self.num_features):
            raise user_error(
                f"features of {self.kind} extractor {self.name} have a wrong shape",
                got=features.shape,
                expected=(len(images), self.num_features),
                fix="use a file whose network returns one feature vector per image",
            )
        invalid = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if len(invalid):
            raise user_error(
                f"features of {self.kind} extractor {self.name} are not finite",
                got=f"NaN or infinity for {len(invalid)} of {len(images)} images, first at row {invalid[0]} of the batch",
                expected="finite numbers",
                fix="check the weights file; it may be damaged or half-trained",
            )
        return np.asarray(features, dtype=np.float32)

    def origin(self, *, set_hash: str, rendering_digest: str) -> FeatureOrigin:
        identity = {
            name: getattr(self, name) for name in ("kind", "sha256", "resize", "comparable_to_published", "note")
        }
        return FeatureOrigin(extractor=self.name, **identity, set_hash=set_hash, rendering_digest=rendering_digest)


def resize_images(images: Tensor, *, size: int, mode: Resize) -> Tensor:
    """Resize images (N, 3, H, W) of any dtype in 0..255 to float32 (N, 3, size, size) without rounding to integers.

    `legacy-pytorch` is bilinear without antialiasing, align_corners=False, as in the PyTorch port of the FID suite.
    `clean` is antialiased bicubic per channel, clipped to 0..255 (Parmar et al., On Aliased Resizing and Surprising
    Subtleties in GAN Evaluation, 2022). `none` keeps the size.
    """
    pixels = images.float()  # (N, 3, H, W)
    if mode == "none":
        return pixels
    if mode == "clean":
        cubic = functional.interpolate(pixels, size=(size, size), mode="bicubic", align_corners=False, antialias=True)
        return cubic.clamp(0, 255)  # (N, 3, size, size)
    return functional.interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False)
