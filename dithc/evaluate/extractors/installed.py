"""Feature extractors of installed packages.

Their network keeps the contract of `scripted.py`, and gives a picture the same features alone, beside others and again.
"""

import hashlib
import json

import torch
from torch import Tensor

from dithc import extensions
from dithc.config import codecs
from dithc.evaluate.extractors.extractor import Extractor
from dithc.evaluate.extractors.scripted import probe, ramp
from dithc.runs import sha256_file

SAME = 1e-4  # of the largest magnitude: rounding alone makes a batch of one differ from one of two


def load(settings: codecs.InstalledExtractor) -> Extractor:
    """Open an installed extractor and find d with a small batch; UserError for a missing file or a violated contract."""
    decides = settings.model_dump(mode="json", exclude={"path"}) | {"extension": settings.extension}
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    for path in settings.files:
        digest.update(sha256_file(path).encode())
    network = settings.called(settings.network)

    def features(images: Tensor) -> Tensor:
        given: Tensor = network(images.float())
        return given

    num_features = probe(features, named=f"extractor {settings.words}", fix=extensions.FIX)
    with torch.inference_mode():
        both, again, alone = features(ramp()), features(ramp()), features(ramp()[:1])
    difference = max(float((one - both[: len(one)]).abs().max()) for one in (again, alone))
    if not difference <= SAME * float(both.abs().max().clamp(min=1e-12)):
        raise settings.fault(
            "returns features that vary with the batch or between calls",
            got=f"a difference of {difference:.2g}",
            expected=f"at most {SAME} of the largest magnitude: evaluation mode, no dropout, no statistics of the batch",
        )
    return Extractor(
        name=settings.kind,
        kind=settings.kind,
        sha256=digest.hexdigest(),
        num_features=num_features,
        resize="none",
        comparable=False,
        note=f"features of {settings.words}, of {' '.join(settings.extension.values())}: not comparable with published FID",
        network=features,
    )
