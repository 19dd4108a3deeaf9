"""Loading of the extractor in a configuration."""

from pathlib import Path

from dithc.config import codecs
from dithc.evaluate.extractors import classifier, inception, installed, scripted, squeezenet
from dithc.evaluate.extractors.extractor import Extractor, Kind, Resize
from dithc.log import logger

NOWHERE = Path()  # for extractors without a file
log = logger(__name__)


def load_extractor(
    kind: Kind | codecs.InstalledExtractor, path: Path = NOWHERE, *, resize: Resize | None = None, trust: bool = False
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
    extractor = (
        installed.load(kind) if isinstance(kind, codecs.InstalledExtractor) else _of_kind(kind, path, resize, trust)
    )
    log.info(
        f"extractor {extractor.kind} {path if isinstance(kind, str) else kind.words}: {extractor.num_features} features, sha256 "
        f"{extractor.sha256[:12]}, resize {extractor.resize}; {extractor.note}"
    )
    return extractor


def _of_kind(kind: Kind, path: Path, resize: Resize | None, trust: bool) -> Extractor:
    if kind == "inception":
        return inception.load(path, resize=resize)
    if kind == "squeezenet":
        return squeezenet.load(path, resize=resize)
    return scripted.load(path, trust=trust) if kind == "torchscript" else classifier.load(path)
