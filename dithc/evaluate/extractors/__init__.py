"""Feature extractors: networks that turn images into the features that distances are made of.

What: `Extractor` is what all have in common, `load_extractor` opens the one that a configuration names, `train_classifier` trains
one where no published network fits.
Invariants: an extractor says what it is by the hash of its weights and how it resizes; no weights are fetched or guessed.
How to change it: another extractor is a file here, its kind in `loading.py` and in the configuration.
"""

from dithc.evaluate.extractors.classifier import train_classifier
from dithc.evaluate.extractors.extractor import Extractor
from dithc.evaluate.extractors.loading import load_extractor

__all__ = ["Extractor", "load_extractor", "train_classifier"]
