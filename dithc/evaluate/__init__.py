"""Evaluation: images -> features -> streamed statistics -> distance (FID, KID) with its floor.

What: `load_extractor` reads a network from a local file; `extract` turns uint8 RGB images into feature shards and a
`Statistics` file, resumably, shared by ranks; `measure` counts their pixels in the units of the data set; `compare` gives the
Fréchet distance of two such results, with everything a reader needs to judge it: both n, the extractor's hash, the resize mode,
the floor (one half of the real set against the other half), how many pixels were clipped, and how many images are copies of what
was learnt, in any orientation (`copies.py`, of features that `turned.py` keeps).
Why: a FID without these is not a number. Suites differ by resize and weights, and a small n inflates the distance.
Flow: loading (inception, squeezenet, scripted, classifier) -> Extractor -> features -> Statistics -> distance -> compare.

Invariants:
- Weights come from a local file only. A missing file is an error; no other network ever takes its place.
- Images are uint8 (N, 3, H, W), RGB; features float32 (N, d), finite; sums, covariance and distance are float64.
- Statistics of different extractors, resize modes or display stretches are never compared.
- Only the published Inception file (by its hash) is marked comparable with published FID.
- A shard counts only with its sidecar, which is written last and carries the hash of the bytes; a folder counts only with
  its `features.json`, which is written last of all.

How to change it: a new extractor is one new file beside `squeezenet.py` and one line in `loading.py`. A new defect is a function
and a line in `defects.py`, learnt by the classifiers that are trained from then on. A new distance is a pure function of
`Statistics` or of features in `distances`, reported by `compare`; what only some evaluations ask
for is in `beside.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dithc.evaluate.compare import compare
from dithc.evaluate.distances import kid

if TYPE_CHECKING:
    from dithc.evaluate.extractors import Extractor, load_extractor, train_classifier
    from dithc.evaluate.features import extract
    from dithc.evaluate.images import ImageSet
    from dithc.evaluate.pixels import measure

__all__ = ["Extractor", "ImageSet", "compare", "extract", "kid", "load_extractor", "measure", "train_classifier"]

# What needs torch is imported when it is asked for: to compare features takes a fraction of a second, torch two.
NEEDS_TORCH = {
    "Extractor": "extractors",
    "ImageSet": "images",
    "extract": "features",
    "load_extractor": "extractors",
    "measure": "pixels",
    "train_classifier": "extractors",
}


def __getattr__(name: str) -> Any:
    if name not in NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{NEEDS_TORCH[name]}"), name)
