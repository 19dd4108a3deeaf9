"""Loading of the extractor in a configuration."""

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from dithc.config import codecs
from dithc.core import plugins
from dithc.core.artifacts import sha256_file
from dithc.core.logging import get_logger
from dithc.evaluate.extractors import classifier, inception, scripted, squeezenet
from dithc.evaluate.extractors.extractor import Extractor, Kind, Resize
from dithc.evaluate.extractors.scripted import probe, ramp

TOLERANCE = 1e-4  # of the largest magnitude: rounding alone makes a batch of one differ from one of two
NO_FILE = Path()  # for extractors without a file
log = get_logger(__name__)


def load_extractor(
    kind: Kind | codecs.PluginExtractor, path: Path = NO_FILE, *, resize: Resize | None = None, trust: bool = False
) -> Extractor:
    """Read a feature extractor from a local file; nothing is downloaded.

    Args:
        kind: `inception` (network of the FID), `squeezenet` (Caffe's v1.0), `torchscript` (a network with the contract in
            `scripted.py`), `classifier` (trained by this workflow), or complete settings of an installed package.
        resize: None means `legacy-pytorch` for inception, `clean` for squeezenet. It has no effect on other extractors.
        trust: Whether to run the code in a `torchscript` file with the rights of the user.

    Raises:
        UserError: A program is not trusted, or the file is missing, damaged or has another structure.
    """
    if isinstance(kind, codecs.PluginExtractor):
        extractor = _load_plugin(kind)
    elif kind == "torchscript":
        extractor = scripted.load(path, trust=trust)
    elif kind == "classifier":
        extractor = classifier.load(path)
    else:
        extractor = {"inception": inception, "squeezenet": squeezenet}[kind].load(path, resize=resize)
    log.info(
        f"extractor {extractor.kind} {path if isinstance(kind, str) else kind.words}: {extractor.num_features} features, sha256 "
        f"{extractor.sha256[:12]}, resize {extractor.resize}; {extractor.note}"
    )
    return extractor


def _load_plugin(settings: codecs.PluginExtractor) -> Extractor:
    """Open an installed extractor, which keeps the contract of `scripted.py` and returns equal features in any batch."""
    identity = settings.model_dump(mode="json", exclude={"path"}) | {"plugin": settings.plugin}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    for path in settings.files:
        digest.update(sha256_file(path).encode())
    network = settings.called(settings.network)

    def features(images: Tensor) -> Tensor:
        output: Tensor = network(images.float())
        return output

    num_features = probe(features, named=f"extractor {settings.words}", fix=plugins.FIX)
    with torch.inference_mode():
        batch, repeated, single = features(ramp()), features(ramp()), features(ramp()[:1])
    difference = max(float((rows - batch[: len(rows)]).abs().max()) for rows in (repeated, single))
    if not difference <= TOLERANCE * float(batch.abs().max().clamp(min=1e-12)):
        raise settings.fault(
            "returns features that vary with the batch or between calls",
            got=f"a difference of {difference:.2g}",
            expected=f"at most {TOLERANCE} of the largest magnitude: evaluation mode, no dropout, no statistics of the batch",
        )
    return Extractor(
        name=settings.kind,
        kind=settings.kind,
        sha256=digest.hexdigest(),
        num_features=num_features,
        note=f"features of {settings.words}, of {' '.join(settings.plugin.values())}: not comparable with published FID",
        network=features,
    )
