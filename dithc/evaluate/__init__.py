"""Evaluation: images -> features -> streamed statistics -> distance (FID, KID) with its floor.

Contents: `load_extractor` reads a network from a local file. `extract_features` converts uint8 RGB images into feature shards
and a `Statistics` file, resumably and shared by ranks. `measure_pixels` counts their pixels in the units of the dataset.
`compare_features` computes the Fréchet distance of two results with the values that qualify it: both n, the hash of the
extractor, the resize mode, the floor (one half of the real set against the other half), the share of clipped pixels,
and the share of copies of train tiles in any orientation (`memorization.py`). Data flow:
loading (inception, squeezenet, scripted, classifier) -> Extractor -> features -> Statistics -> distance -> compare_features.

Invariants:
- Weights come from a local file only. A missing file is an error; no other network replaces it.
- Images are uint8 (N, 3, H, W), RGB; features float32 (N, d), finite; sums, covariance and distance are float64.
- Statistics of different extractors, resize modes or display stretches are never compared.
- Only the published Inception file (by its hash) is marked comparable with published FID.
- A shard is valid only with its sidecar, which is written after it and contains the hash of the bytes. A folder is
  valid only with its `features.json`, which is written last.

Extending: a new extractor is one file next to `squeezenet.py` and one line in `loading.py`. A new defect is a function
and a line in `defects.py`; classifiers trained afterwards learn it. A new distance is a pure function of `Statistics`
or of features in `distances`, reported by `compare_features`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dithc.evaluate import detectability
from dithc.evaluate.image_set import ImageSet
from dithc.evaluate.pixels import measure_pixels
from dithc.evaluate.scores import compare_features

if TYPE_CHECKING:
    from dithc.evaluate.extractors import Extractor, load_extractor, train_classifier
    from dithc.evaluate.features import extract_features

__all__ = [
    "Extractor",
    "ImageSet",
    "compare_features",
    "detectability",
    "extract_features",
    "load_extractor",
    "measure_pixels",
    "train_classifier",
]

# Names that need torch are imported on first use: comparing features takes a fraction of a second, importing torch two.
NEEDS_TORCH = dict.fromkeys(("Extractor", "load_extractor", "train_classifier"), "extractors")
NEEDS_TORCH |= {"extract_features": "features"}


def __getattr__(name: str) -> Any:
    if name not in NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{NEEDS_TORCH[name]}"), name)
