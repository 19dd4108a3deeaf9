"""Custom feature extractors as TorchScript files.

Contract of the file: `torch.jit.load` opens it. Its `forward` accepts float32 RGB images (N, 3, H, W) in 0..255 of any
size from 32x32, resizes and normalizes them, and returns floating features (N, d), one row per image, in evaluation
mode.

A TorchScript file is a program: opening it and every batch run its code with the rights of the user, and it can write
files. The file is not read before the user has marked it as trusted.
"""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dithc.core.artifacts import sha256_file
from dithc.core.logging import user_error
from dithc.core.weights import unreadable
from dithc.evaluate.extractors.extractor import Extractor
from dithc.evaluate.extractors.weights import require_file

PROBE_SHAPE = (2, 3, 64, 64)
CONTRACT = "a network from float32 (N, 3, H, W) in 0..255 to finite floating features (N, d)"
FIX = "script a wrapper that resizes, normalizes and returns one feature vector per image"


def load(path: Path, *, trust: bool) -> Extractor:
    """Read a TorchScript network and determine d with a small batch."""
    if not trust:
        raise user_error(
            f"TorchScript file {path} is a program that runs with your rights, and is not trusted",
            got="trust_code: false",
            expected="`trust_code: true` next to its `path` in the section `extractors`, if its origin is known",
            fix="check its origin and add `trust_code: true`, or use a `kind` without code, such as squeezenet",
        )
    require_file(path, kind="torchscript", what_to_put=f"a file written by torch.jit.save: {CONTRACT}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer PyTorch versions announce the end of TorchScript here
            script = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except Exception as error:  # damaged archives raise a dozen types
        title, expected = f"TorchScript file {path} cannot be read", "a complete file written by torch.jit.save"
        raise unreadable(title, path, expected=expected, fix="copy or export the file again", error=error) from None

    def features(images: Tensor) -> Tensor:
        return script(images.float())  # type: ignore[no-any-return]

    return Extractor(
        name=path.name,
        kind="torchscript",
        sha256=sha256_file(path),
        num_features=probe(script, named=f"TorchScript file {path}", fix=FIX),
        note="features of a TorchScript file with its own resizing: not comparable with published FID",
        network=features,
    )


def probe(network: Callable[[Tensor], Any], *, named: str, fix: str) -> int:
    """Return the number of features for a fixed gray ramp."""
    try:
        with torch.inference_mode():
            result = network(ramp())
    except Exception as error:  # an external program may raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        got = lines[-1] if lines else type(error).__name__  # the cause, after a stack trace
    else:
        if isinstance(result, Tensor) and result.ndim == 2 and len(result) == 2 and result.is_floating_point():
            if bool(result.isfinite().all()):
                return result.shape[1]
            got = "NaN or infinity"
        else:
            got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
    raise user_error(f"{named} fails on a {PROBE_SHAPE} batch", got=got, expected=CONTRACT, fix=fix)


def ramp() -> Tensor:
    """Images (2, 3, 64, 64) of a gray ramp over all levels."""
    return torch.linspace(0, 255, math.prod(PROBE_SHAPE)).view(PROBE_SHAPE)
