"""Records of restorations: settings, scores, and the folders of the restored scenes."""

from collections.abc import Iterator

from dithc.config import ExperimentConfig
from dithc.report.collect.gather import ExperimentResults
from dithc.report.collect.runs import flatten
from dithc.report.records import RestorationRecord


def restoration_records(experiment: ExperimentConfig, results: ExperimentResults) -> Iterator[RestorationRecord]:
    """Yield the record of each finished restoration, in the order of the configuration."""
    for name, settings in experiment.restorations.items():
        if result := results.last("restore", name):
            folders = dict.fromkeys(result.path.parent / entry["path"] for entry in result.manifest.files)
            yield RestorationRecord(
                name=name,
                dataset=settings.dataset,
                prior=settings.run,
                settings=flatten(settings.model_dump(mode="json")),
                members=settings.members,
                scenes=result.summary["scenes"],
                coarse=dict(settings.coarse),
                missing=list(settings.missing),
                scores=result.summary.get("scores", {}),
                folders=list(dict.fromkeys(path.parent for path in folders if path.name == "mean.tif")),
            )
