"""Stages of an experiment with rule, output, log and dependencies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dithc.config import codecs
from dithc.workflow.experiment_graph import ExperimentGraph

# Stage names in manifests, if they differ from the rule.
MANIFESTS = {"pretrain": "train", "finetune": "train", "features_real": "features", "features_generated": "features"}
# Rules of benches by the first word of their files.
BENCHES = {"step": "bench", "strategies": "strategies", "scaling": "measure_scaling", "simulated": "simulate_scaling"}
BENCHES |= {name: f"measure_{name}" for name in ("stepwise", "automem", "sampling")}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One job of the workflow, with paths relative to the working folder.

    Attributes:
        kind, name: type of object, such as `dataset`, and its name.
        wildcards: values in the order of the rule's output.
        needs: outputs of earlier stages.
        step: last step of a segment of a run; else 0.
    """

    kind: str
    name: str
    rule: str
    wildcards: tuple[str, ...]
    output: str
    log: str
    needs: tuple[str, ...] = ()
    step: int = 0

    @property
    def key(self) -> str:
        """Rule and wildcards as one word, as the engine's plugin passes them to a scheduler."""
        return "_".join((self.rule, *self.wildcards))

    @property
    def manifest(self) -> str:
        """Stage name in its manifest; the rule's name without a manifest."""
        return MANIFESTS.get(self.rule, self.rule)

    @property
    def title(self) -> str:
        end = f" to step {self.step}" if self.step else ""
        return f"{self.rule.removesuffix('_generated').removesuffix('_real')} {self.name}".strip() + end


def stages_of(matrix: ExperimentGraph) -> list[Stage]:
    """Return all stages up to the report, grouped by object (dataset, run ...), in work order."""
    before = [*_datasets(matrix), *_codecs(matrix), *_runs(matrix), *_evaluations(matrix), *_benches(matrix)]
    report, log, needs = f"{matrix.root}/report.html", matrix.log("report"), tuple(stage.output for stage in before)
    return [*before, Stage(kind="report", name="", rule="report", wildcards=(), output=report, log=log, needs=needs)]


def _stage(kind: str, name: str, rule: str, output: str, log: str, needs: Iterable[str]) -> Stage:
    """Return a stage whose only wildcard is its name."""
    return Stage(kind=kind, name=name, rule=rule, wildcards=(name,), output=output, log=log, needs=tuple(needs))


def _datasets(matrix: ExperimentGraph) -> Iterator[Stage]:
    for name in matrix.experiment.datasets:
        made, scenes, tiles = matrix.scene_input(name), matrix.path("scenes", name), matrix.path("tiles", name)
        steps: list[tuple[str, str, list[str]]] = [("synthesize", path, []) for path in made]
        steps += [("ingest", scenes, made), ("tiles", tiles, [scenes])]
        steps += [("latents", matrix.path("latents", name), [tiles, *matrix.codec_of(name)])]
        for rule, output, needs in steps:
            yield _stage("dataset", name, rule, output, matrix.log(f"{rule}/{name}"), needs)


def _codecs(matrix: ExperimentGraph) -> Iterator[Stage]:
    for name, codec in matrix.experiment.codecs.items():
        if isinstance(codec, codecs.KlVaeConfig):
            needs = [matrix.path("tiles", codec.train_dataset)]
            yield _stage("codec", name, "codec", matrix.path("codecs", name), matrix.log(f"codec/{name}"), needs)


def _runs(matrix: ExperimentGraph) -> Iterator[Stage]:
    for name in matrix.experiment.runs:
        for step in matrix.segments(name):
            yield Stage(
                kind="run",
                name=name,
                rule="finetune" if name in matrix.finetunings else "pretrain",
                wildcards=(name, f"{step:07d}"),
                output=matrix.segment(name, step),
                log=matrix.log(f"train/{name}/step_{step:07d}"),
                needs=tuple(matrix.train_input(name, step).values()),
                step=step,
            )


def _evaluations(matrix: ExperimentGraph) -> Iterator[Stage]:
    experiment = matrix.experiment
    for name, extractor in experiment.extractors.items():
        if extractor.train_dataset is not None and matrix.extractor_of(name):
            output, log = matrix.path("extractors", name), matrix.log(f"extractor/{name}")
            yield _stage("extractor", name, "extractor", output, log, [matrix.path("tiles", extractor.train_dataset)])
    for name in matrix.real_sets:
        dataset, split, count, extractor_name = name.split(".", 3)
        yield Stage(
            kind="features",
            name=name,
            rule="features_real",
            wildcards=(dataset, split, count, extractor_name),
            output=matrix.path("features", name),
            log=matrix.log(f"features/{name}"),
            needs=(matrix.path("tiles", dataset), *matrix.extractor_of(extractor_name)),
        )
    for name, evaluation in experiment.evaluations.items():
        sampled = [path for paths in matrix.sample_input(name).values() for path in paths]
        samples, features = matrix.path("samples", name), matrix.path("features", name)
        real = matrix.path("features", matrix.real_set(name))
        steps = [("sample", "sample", samples, sampled)]
        if evaluation.windows is None:  # scenes have no score
            features_of = [samples, *matrix.extractor_of(evaluation.extractor)]
            steps += [("features_generated", "features", features, features_of)]
            compared = [real, features, matrix.path("tiles", matrix.dataset_of(name))]
            steps += [("fid", "fid", matrix.path("fid", name), compared)]
        for rule, folder, output, inputs in steps:
            yield _stage("evaluation", name, rule, output, matrix.log(f"{folder}/{name}"), inputs)


def _benches(matrix: ExperimentGraph) -> Iterator[Stage]:
    first, last = (("step", "strategies"), ("stepwise", "automem", "sampling"))
    paths = [path for name in first for path in matrix.bench_file(name)] + matrix.scaling_files
    for path in paths + [path for name in last for path in matrix.bench_file(name)]:
        name = Path(path).stem
        bench, _, mode = name.partition("-")
        wildcards, log = (mode,) if mode else (), matrix.log(f"bench/{name}")
        yield Stage(kind="bench", name=name, rule=BENCHES[bench], wildcards=wildcards, output=path, log=log)
