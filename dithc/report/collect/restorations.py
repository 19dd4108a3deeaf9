"""Records of restorations: settings, scores, and the folders of the restored scenes."""

from collections.abc import Iterator
from pathlib import Path

from dithc.config import ExperimentConfig
from dithc.core.artifacts import Manifest
from dithc.report.collect.gather import ExperimentResults
from dithc.report.collect.runs import flatten
from dithc.report.records import RestorationRecord


def restoration_records(experiment: ExperimentConfig, results: ExperimentResults) -> Iterator[RestorationRecord]:
    """Yield the record of each finished restoration, in the order of the configuration."""
    for name in experiment.restorations:
        if result := results.last("restore", name):
            yield restoration_record(result.path, result.manifest)


def restoration_record(path: Path, manifest: Manifest) -> RestorationRecord:
    """Return the record of a restoration from its manifest."""
    spec, summary = manifest.spec, manifest.summary
    images = (path.parent / entry["path"] for entry in manifest.files)
    return RestorationRecord(
        name=manifest.name,
        dataset=spec["dataset"],
        prior=spec["run"],
        settings=flatten(spec),
        members=summary["members"],
        scenes=summary["scenes"],
        coarse=spec["coarse"],
        missing=spec["missing"],
        scores=summary.get("scores", {}),
        folders=[image.parent for image in images if image.name == "mean.tif"],
    )
