"""Feature extractors: networks that convert images into features for distances.

Contents: `Extractor` is the common record, `load_extractor` opens the extractor of a configuration, `train_classifier`
trains one if no published network fits.

Invariants: the hash of the weights and the resize mode identify an extractor. No weights are downloaded or substituted.

Extending: another extractor is a file here, and its `kind` in `loading.py` and in the configuration.
"""

from dithc.evaluate.extractors.classifier import train_classifier
from dithc.evaluate.extractors.extractor import Extractor
from dithc.evaluate.extractors.loading import load_extractor

__all__ = ["Extractor", "load_extractor", "train_classifier"]
