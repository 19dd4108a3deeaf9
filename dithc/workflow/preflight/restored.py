"""Damaged results that a rebuild reproduces exactly, so that no downstream job runs."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dithc.config import stage_spec
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.workflow.experiment_graph import ExperimentGraph


def read_digest(path: str) -> str | None:
    return manifest.digest if (manifest := read_manifest(Path(path))) is not None else None


def read_manifest(path: Path) -> Manifest | None:
    """Read a manifest; None if it is missing or unreadable."""
    try:
        return Manifest.read(path)
    except (UserError, OSError):
        return None


def find_restorable(graph: ExperimentGraph, damaged: Iterable[str]) -> dict[str, str]:
    """Return the digests, by manifest path, of damaged results that today's settings, inputs and files reproduce.

    The same inputs give the same results, so later jobs may stay. A missing or unreadable manifest has no known digest, and
    everything downstream runs.
    """
    manifests = set(graph.manifests)

    @cache
    def is_settled(path: str) -> bool:
        manifest = read_manifest(Path(path))
        name = graph.entry_name(manifest) if manifest is not None else None
        if manifest is None or name is None or graph.has_other_files(manifest.stage, name):
            return False
        if manifest.spec != stage_spec(graph.experiment, manifest.stage, name):
            return False
        inputs = {source: digest for source, digest in manifest.inputs.items() if source in manifests}
        return all(read_digest(source) == digest and is_settled(source) for source, digest in inputs.items())

    return {path: digest for path in damaged if is_settled(path) and (digest := read_digest(path)) is not None}
