"""Reading of the manifests of a report, and rejection of inconsistent results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.config import ExperimentConfig, stage_spec
from dithc.core.artifacts import Manifest, summaries
from dithc.core.logging import user_error

STAGES = tuple(summaries.SUMMARY_TYPES)


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A manifest and its path; `stage` is one of `STAGES`."""

    path: Path
    stage: str
    manifest: Manifest

    @property
    def name(self) -> str:
        """Dataset, codec, run, extractor, feature set or evaluation of the result."""
        return self.manifest.name

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.manifest.summary

    def file(self, name: str) -> Path | None:
        """Return a file next to the manifest after a check of its bytes; None if absent."""
        path = self.path.parent / name
        return Manifest.verified(path) if path.is_file() else None


@dataclass(frozen=True)
class ExperimentResults:
    """All existing results of an experiment."""

    items: tuple[StageResult, ...]

    def all(self, stage: str, name: str | None = None) -> list[StageResult]:
        """Return results of a stage, of one name or of all, in order."""
        return [item for item in self.items if item.stage == stage and name in (None, item.name)]

    def last(self, stage: str, name: str) -> StageResult | None:
        """Return the result of a stage for a name, or its last segment."""
        segments = self.all(stage, name)
        return max(segments, key=lambda item: item.summary.get("step") or 0, default=None)

    @property
    def code(self) -> dict[str, list[str]]:
        """Stages and names by source hash; several keys mean mixed code."""
        pairs = [(str(item.manifest.code.get("source", "unknown")), f"{item.stage} {item.name}") for item in self.items]
        sources = dict.fromkeys(source for source, _ in pairs)
        return {code: list(dict.fromkeys(name for source, name in pairs if source == code)) for code in sources}


def gather_manifests(experiment: ExperimentConfig, paths: Iterable[Path]) -> ExperimentResults:
    """Read every manifest and check that all belong to this experiment and to each other."""
    items = tuple(_read(path) for path in dict.fromkeys(paths))
    faults = [fault for item in items for fault in _settings_faults(experiment, item)]
    faults += _input_faults(items)
    if faults:
        raise user_error(
            f"the results of the report are inconsistent ({len(faults)} faults)",
            got="".join(f"\n    {fault}" for fault in faults),
            expected="results of one experiment, each computed from its current inputs",
            fix="rerun the workflow, which rebuilds outdated results, or remove the listed results",
        )
    return ExperimentResults(items)


def _read(path: Path) -> StageResult:
    manifest = Manifest.read(path)
    if manifest.stage not in STAGES:
        raise user_error(
            f"manifest {path} has an unknown stage",
            got=manifest.stage,
            expected=", ".join(STAGES),
            fix="leave it out of --manifests",
        )
    return StageResult(path=path, stage=manifest.stage, manifest=manifest)


def _settings_faults(experiment: ExperimentConfig, item: StageResult) -> list[str]:
    """Return settings of a result that differ from the experiment; only common keys are compared."""
    name = item.name
    if item.stage == "features":  # real sets are dataset.split.count.extractor, generated ones an evaluation
        evaluation = experiment.evaluations.get(name)
        name = evaluation.extractor if evaluation else name.rpartition(".")[2]
    try:
        expected = stage_spec(experiment, item.stage, name)
    except (KeyError, AssertionError):
        return [f"{item.path}: {item.stage} {item.name!r} is not in experiment {experiment.name!r}"]
    return [
        f"{item.path}: made with {key} = {item.manifest.spec[key]!r}, the experiment has {value!r}"
        for key, value in expected.items()
        if key in item.manifest.spec and item.manifest.spec[key] != value
    ]


def _input_faults(items: Iterable[StageResult]) -> list[str]:
    """Return inputs that occur in two versions, or that were replaced after use."""
    versions: dict[Path, dict[str, str]] = {}
    for item in items:
        versions.setdefault(item.path.resolve(), {})[item.manifest.digest] = "the current file"
    for item in items:
        for path, digest in item.manifest.inputs.items():
            versions.setdefault(Path(path).resolve(), {}).setdefault(digest, f"the input of {item.stage} {item.name}")
    return [
        f"{path}: " + ", ".join(f"{digest} is {role}" for digest, role in roles.items())
        for path, roles in versions.items()
        if len(roles) > 1
    ]
