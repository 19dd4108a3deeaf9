"""Graph of an experiment: names, manifest paths and dependencies of all stages."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dithc.config import load_experiment, stage_spec
from dithc.core.artifacts import Manifest, atomic_write
from dithc.core.integrity import dump_checksummed
from dithc.workflow.fingerprint import FileFingerprints
from dithc.workflow.planned_settings import with_plans
from dithc.workflow.snakemake_api import ConfigArguments

PATHS = {"path", "init_from_file", "dem"}  # settings that contain paths of user files


class ExperimentGraph:
    """An experiment for the workflow engine: names, manifest paths, dependencies.

    `root` is `results/<name>`, `config` the resolved configuration, `files` the fingerprints of user files.
    """

    def __init__(
        self, config: Mapping[str, Any], *, files: Sequence[Any] = (), overrides: Sequence[ConfigArguments] = ()
    ) -> None:
        self.experiment = with_plans(load_experiment(config, files=[Path(file) for file in files], overrides=overrides))
        self.root = _plain(f"{self.experiment.results}/{self.experiment.name}")
        self.config = f"{self.root}/config.json"
        self.files = FileFingerprints(Path(self.root) / "fingerprints.json")

    def write_config(self) -> None:
        """Write the resolved configuration, which every job reads. A dry run does not write it."""
        text = dump_checksummed(self.experiment.model_dump(mode="json"))
        path = Path(self.config)
        if not path.is_file() or path.read_bytes() != text.encode():
            atomic_write(path, text)
        self.files.save()

    # names

    def names(self, section: str) -> str:
        """Return the names of a section as a regular expression for wildcards; matches no text if empty."""
        return "|".join(getattr(self.experiment, section)) or "(?!)"

    @property
    def pretrainings(self) -> list[str]:
        return [name for name in self.experiment.runs if name not in self.finetunings]

    @property
    def finetunings(self) -> list[str]:
        return [name for name, run in self.experiment.runs.items() if run.init_from_run or run.init_from_file]

    @property
    def real_sets(self) -> list[str]:
        """Real feature sets of the evaluations, as `dataset.split.count.extractor`."""
        return sorted({self.real_set(name) for name in self.experiment.scored})

    def real_set(self, evaluation: str) -> str:
        settings = self.experiment.evaluations[evaluation]
        count = settings.num_real_images or "all"
        return f"{self.experiment.runs[settings.run].dataset}.{settings.real_split}.{count}.{settings.extractor}"

    def measured(self, features: str) -> str:
        """Return options of `dithc features` for a set, of an evaluation or a shared real set."""
        evaluations = self.experiment.evaluations
        matching = [evaluation for name, evaluation in evaluations.items() if features in (name, self.real_set(name))]
        options = ["--pixel-statistics"] if any(evaluation.needs_pixel_statistics for evaluation in matching) else []
        triplets = dict.fromkeys(name for evaluation in matching for name in evaluation.triplet_names)
        return " ".join([*options, *(f"--band-triplet {name}" for name in triplets)])

    def sample_input(self, evaluation: str) -> dict[str, list[str]]:
        """Return the inputs of an evaluation's images; unused inputs are empty lists."""
        settings, dataset = self.experiment.evaluations[evaluation], self.dataset_of(evaluation)
        is_trained = settings.checkpoint != "codec"
        return {
            "checkpoint": [self.final(settings.run)] if is_trained else [],
            "latents": [self.path("latents", dataset)] if is_trained else [],
            "tiles": [self.path("tiles", dataset)],
            "codec": self.codec_of(dataset),
        }

    def restore_input(self, restoration: str) -> dict[str, list[str]]:
        """Return the inputs of a restoration; `masks` and `codec` are empty if it needs none."""
        settings = self.experiment.restorations[restoration]
        prior = self.experiment.runs[settings.run].dataset
        masks = settings.hide.dataset if settings.hide is not None else None
        return {
            "checkpoint": [self.final(settings.run)],
            "tiles": [self.path("tiles", prior)],
            "training": [self.path("scenes", prior)],
            "scenes": [self.path("scenes", settings.dataset)],
            "masks": [self.path("scenes", masks)] if masks is not None else [],
            "codec": self.codec_of(prior),
        }

    # paths of manifests

    def path(self, stage: str, name: str) -> str:
        """Return the manifest of a stage for a dataset, codec, evaluation ...; `name` may be a wildcard in braces."""
        return f"{self.root}/{stage}/{name}/manifest.json"

    def log(self, name: str) -> str:
        return f"{self.root}/logs/{name}.log"

    def segment(self, run: str, step: int | str) -> str:
        """Return the manifest of a run at the end of a segment; both may be wildcards in braces."""
        number = f"{step:07d}" if isinstance(step, int) else step
        return f"{self.root}/runs/{run}/step_{number}.json"

    def final(self, run: str) -> str:
        return self.segment(run, self.experiment.runs[run].steps)

    @property
    def manifests(self) -> list[str]:
        """Every manifest that the report reads: all stages of all sections of the experiment."""
        experiment = self.experiment
        synthetic = [name for name in experiment.datasets if self.scene_input(name)]
        stages: dict[str, Iterable[str]] = {
            "inputs": synthetic,
            "scenes": experiment.datasets,
            "tiles": experiment.tiled,
            "codecs": [name for name, codec in experiment.codecs.items() if codec.kind == "kl-vae"],
            "latents": experiment.tiled,
            "samples": experiment.evaluations,
            "restorations": experiment.restorations,
            "extractors": [name for name in experiment.extractors if self.extractor_of(name)],
            "features": [*self.real_sets, *experiment.scored],
            "fid": experiment.scored,
        }
        paths = [self.path(stage, name) for stage, names in stages.items() for name in names]
        return paths + [self.segment(name, step) for name in experiment.runs for step in self.segments(name)]

    def segments(self, run: str) -> list[int]:
        settings = self.experiment.runs[run]
        return list(range(settings.segment_steps, settings.steps + 1, settings.segment_steps))

    def bench_file(self, name: str) -> list[str]:
        """Return the JSON of a bench (`step`, `strategies`, `stepwise`, `automem`) if it is requested."""
        bench = self.experiment.bench
        section: Any = bench if name == "step" else getattr(bench, name)
        is_requested = section.models if name == "strategies" else section.model
        return [f"{self.root}/bench/{name}.json"] if is_requested else []

    @property
    def measured_files(self) -> list[str]:
        return [f"{self.root}/bench/scaling-{mode}.json" for mode in ("weak", "strong")]

    @property
    def simulated_files(self) -> list[str]:
        return [f"{self.root}/bench/simulated-{name}.json" for name in self.experiment.bench.simulate.experiments]

    @property
    def scaling_files(self) -> list[str]:
        measured = self.measured_files if self.experiment.bench.scaling.models else []
        return measured + (self.simulated_files if self.experiment.bench.simulate.machine else [])

    def paper_scores(self, target: str) -> list[str]:
        evaluations = self.experiment.evaluations
        final = (name for name in self.experiment.scored if evaluations[name].checkpoint == "final")
        paths = [self.path("fid", name) for name in final if evaluations[name].run in self.finetunings]
        return paths if target == "table1" else []

    def paper_pictures(self, target: str) -> list[str]:
        """Return the report mosaics for figure 8; empty without evaluations."""
        if target != "fig8" or not self.experiment.evaluations:
            return []
        return [f"{self.root}/figures/{name}.png" for name in ("samples", "composites")]

    # dependencies

    def dataset_of(self, evaluation: str) -> str:
        return self.experiment.runs[self.experiment.evaluations[evaluation].run].dataset

    def scene_input(self, dataset: str) -> list[str]:
        """Return inputs of ingestion: the generator, or none for user files."""
        synthetic = self.experiment.datasets[dataset].source.synthetic is not None
        return [self.path("inputs", dataset)] if synthetic else []

    def train_input(self, run: str, step: int) -> dict[str, str]:
        """Return inputs of a segment: latents, and the earlier segment or start run."""
        settings = self.experiment.runs[run]
        inputs = {"latents": self.path("latents", settings.dataset)}
        if settings.init_from_run:
            inputs["init"] = self.final(settings.init_from_run)
        if step > settings.segment_steps:
            inputs["before"] = self.segment(run, step - settings.segment_steps)
        return inputs

    def spec(self, stage: str, name: str) -> str:
        """Return the settings that determine a stage's result, as canonical JSON: a change triggers a rerun.

        Fingerprints replace paths of user files, so new files count and locations do not.
        """
        spec = stage_spec(self.experiment, stage, name, for_rule=True)
        return json.dumps(self._with_files(spec, with_name=stage == "ingest"), sort_keys=True)

    def has_other_files(self, stage: str, name: str) -> bool:
        """Return whether a stage's user files have changed since the last run, as far as known."""
        spec = stage_spec(self.experiment, stage, name, for_rule=True)
        return any(not self.files.is_unchanged(path, with_name=stage == "ingest") for path in _paths_in(spec))

    def _with_files(self, value: Any, *, with_name: bool) -> Any:
        if not isinstance(value, dict):
            return value
        entries = {key: self._with_files(part, with_name=with_name) for key, part in value.items()}
        paths = {key: part for key, part in value.items() if key in PATHS and isinstance(part, str)}
        return entries | {key: self.files.fingerprint(path, with_name=with_name) for key, path in paths.items()}

    def entry_name(self, manifest: Manifest) -> str | None:
        """Return the name of the configuration's entry that determines a result; None without one."""
        experiment, name = self.experiment, manifest.name
        if manifest.stage == "features":
            name = self.extractor_name(name) if name in experiment.evaluations else name.rpartition(".")[2]
        sections = (
            experiment.datasets,
            experiment.codecs,
            experiment.runs,
            experiment.extractors,
            experiment.evaluations,
            experiment.restorations,
        )
        return name if any(name in section for section in sections) else None

    def extractor_name(self, evaluation: str) -> str:
        return self.experiment.evaluations[evaluation].extractor

    def extractor_of(self, name: str) -> list[str]:
        return [self.path("extractors", name)] if self.experiment.extractors[name].kind == "classifier" else []

    def codec_of(self, dataset: str) -> list[str]:
        """Return the manifest of a dataset's codec if it is trained here, else empty."""
        name = self.experiment.datasets[dataset].codec
        return [self.path("codecs", name)] if self.experiment.codecs[name].kind == "kl-vae" else []

    @property
    def titles(self) -> list[str]:
        """Titles in the report: a rule parameter, so that an edited title rebuilds the report."""
        return [self.experiment.title, *(dataset.title for dataset in self.experiment.datasets.values())]


def _plain(path: str) -> str:
    """Normalize a path: relative if it is below the working folder."""
    relative = os.path.relpath(path)
    return os.path.normpath(path) if relative.startswith("..") else relative


def _paths_in(value: Any) -> Iterator[str]:
    for key, part in value.items() if isinstance(value, dict) else ():
        if key in PATHS and isinstance(part, str):
            yield part
        else:
            yield from _paths_in(part)
