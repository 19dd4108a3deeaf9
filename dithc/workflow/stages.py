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
BENCHES |= {name: f"measure_{name}" for name in ("stepwise", "automem")}


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


def stages_of(graph: ExperimentGraph) -> list[Stage]:
    """Return all stages up to the report, grouped by object (dataset, run ...), in work order."""
    before = [*_datasets(graph), *_codecs(graph), *_runs(graph), *_evaluations(graph), *_restorations(graph)]
    before += _benches(graph)
    report, log, needs = f"{graph.root}/report.html", graph.log("report"), tuple(stage.output for stage in before)
    return [*before, Stage(kind="report", name="", rule="report", wildcards=(), output=report, log=log, needs=needs)]


def _stage(kind: str, name: str, rule: str, output: str, log: str, needs: Iterable[str]) -> Stage:
    """Return a stage whose only wildcard is its name."""
    return Stage(kind=kind, name=name, rule=rule, wildcards=(name,), output=output, log=log, needs=tuple(needs))


def _datasets(graph: ExperimentGraph) -> Iterator[Stage]:
    for name in graph.experiment.datasets:
        made, scenes, tiles = graph.scene_input(name), graph.path("scenes", name), graph.path("tiles", name)
        steps: list[tuple[str, str, list[str]]] = [("synthesize", path, []) for path in made]
        steps += [("ingest", scenes, made)]
        if name in graph.experiment.tiled:
            steps += [("tiles", tiles, [scenes])]
            steps += [("latents", graph.path("latents", name), [tiles, *graph.codec_of(name)])]
        for rule, output, needs in steps:
            yield _stage("dataset", name, rule, output, graph.log(f"{rule}/{name}"), needs)


def _codecs(graph: ExperimentGraph) -> Iterator[Stage]:
    for name, codec in graph.experiment.codecs.items():
        if isinstance(codec, codecs.KlVaeConfig):
            needs = [graph.path("tiles", codec.train_dataset)]
            yield _stage("codec", name, "codec", graph.path("codecs", name), graph.log(f"codec/{name}"), needs)


def _runs(graph: ExperimentGraph) -> Iterator[Stage]:
    for name in graph.experiment.runs:
        for step in graph.segments(name):
            yield Stage(
                kind="run",
                name=name,
                rule="finetune" if name in graph.finetunings else "pretrain",
                wildcards=(name, f"{step:07d}"),
                output=graph.segment(name, step),
                log=graph.log(f"train/{name}/step_{step:07d}"),
                needs=tuple(graph.train_input(name, step).values()),
                step=step,
            )


def _evaluations(graph: ExperimentGraph) -> Iterator[Stage]:
    experiment = graph.experiment
    for name, extractor in experiment.extractors.items():
        if extractor.train_dataset is not None and graph.extractor_of(name):
            output, log = graph.path("extractors", name), graph.log(f"extractor/{name}")
            yield _stage("extractor", name, "extractor", output, log, [graph.path("tiles", extractor.train_dataset)])
    for name in graph.real_sets:
        dataset, split, count, extractor_name = name.split(".", 3)
        yield Stage(
            kind="features",
            name=name,
            rule="features_real",
            wildcards=(dataset, split, count, extractor_name),
            output=graph.path("features", name),
            log=graph.log(f"features/{name}"),
            needs=(graph.path("tiles", dataset), *graph.extractor_of(extractor_name)),
        )
    for name, evaluation in experiment.evaluations.items():
        sampled = [path for paths in graph.sample_input(name).values() for path in paths]
        samples, features = graph.path("samples", name), graph.path("features", name)
        real = graph.path("features", graph.real_set(name))
        steps = [("sample", "sample", samples, sampled)]
        if evaluation.windows is None:  # scenes have no score
            features_of = [samples, *graph.extractor_of(evaluation.extractor)]
            steps += [("features_generated", "features", features, features_of)]
            compared = [real, features, graph.path("tiles", graph.dataset_of(name))]
            steps += [("fid", "fid", graph.path("fid", name), compared)]
        for rule, folder, output, inputs in steps:
            yield _stage("evaluation", name, rule, output, graph.log(f"{folder}/{name}"), inputs)


def _restorations(graph: ExperimentGraph) -> Iterator[Stage]:
    for name in graph.experiment.restorations:
        needs = [path for paths in graph.restore_input(name).values() for path in paths]
        yield _stage(
            "restoration", name, "restore", graph.path("restorations", name), graph.log(f"restore/{name}"), needs
        )


def _benches(graph: ExperimentGraph) -> Iterator[Stage]:
    first, last = (("step", "strategies"), ("stepwise", "automem"))
    paths = [path for name in first for path in graph.bench_file(name)] + graph.scaling_files
    for path in paths + [path for name in last for path in graph.bench_file(name)]:
        name = Path(path).stem
        bench, _, mode = name.partition("-")
        wildcards, log = (mode,) if mode else (), graph.log(f"bench/{name}")
        yield Stage(kind="bench", name=name, rule=BENCHES[bench], wildcards=wildcards, output=path, log=log)
