"""Which results that are not whole will be the same when they are made again, so that nothing has to run for them."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dithc.log import UserError
from dithc.runs import Manifest
from dithc.workflow.matrix import Matrix


def digest_of(path: str) -> str | None:
    """Digest of a result by its manifest; None where that cannot be read."""
    try:
        return Manifest.read(Path(path)).digest
    except (UserError, OSError):
        return None


def restorable(matrix: Matrix, damaged: Iterable[str]) -> dict[str, str]:
    """Those of the damaged results that follow from the settings, inputs and files of today, as they did when they were made.

    What is computed of the same things is the same, so the jobs behind it may stay. Where a manifest itself is gone or cannot be
    read, nobody knows what it was, and all that follows from it runs.

    Args:
        matrix: the experiment.
        damaged: paths of manifests whose files are not whole.

    Returns:
        Digest of each, by the path of the manifest.
    """
    known = set(matrix.manifests)

    @cache
    def is_settled(path: str) -> bool:
        try:
            manifest = Manifest.read(Path(path))
        except (UserError, OSError):
            return False
        name = _name(matrix, manifest)
        if name is None or manifest.spec != Manifest.spec_of(matrix.experiment, manifest.stage, name):
            return False
        if matrix.has_other_files(manifest.stage, name):
            return False
        above = {one: digest for one, digest in manifest.inputs.items() if one in known}
        return all(digest_of(one) == digest and is_settled(one) for one, digest in above.items())

    return {path: digest for path in damaged if is_settled(path) and (digest := digest_of(path)) is not None}


def _name(matrix: Matrix, manifest: Manifest) -> str | None:
    """Under which name the settings of a result stand in the configuration; None where they no longer do."""
    experiment, name = matrix.experiment, manifest.name
    if manifest.stage == "features":
        name = matrix.extractor_name(name) if name in experiment.evaluations else name.rpartition(".")[2]
    sections = (experiment.datasets, experiment.codecs, experiment.runs, experiment.extractors, experiment.evaluations)
    return name if any(name in section for section in sections) else None
