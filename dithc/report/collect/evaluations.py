"""Facts on an evaluation: its sampler, its score, and the files of its images."""

from dithc.config import ExperimentConfig
from dithc.core.artifacts import summaries
from dithc.report.collect.datasets import numbers_of, taken
from dithc.report.collect.gather import ExperimentResults, StageResult
from dithc.report.collect.kid_gain import cost_of, gain_of
from dithc.report.collect.runs import flat
from dithc.report.documents import read_json
from dithc.report.records import EvaluationFacts, SampleFiles, Score


def _label(experiment: ExperimentConfig, evaluation: str) -> str:
    """Describe the evaluated weights, with the run if the dataset has several."""
    chosen = experiment.evaluations[evaluation]
    run = experiment.runs[chosen.run]
    task = "fine-tuning" if run.init_from_run or run.init_from_file else "training"
    beside = {one.run for one in experiment.evaluations.values() if one.checkpoint == chosen.checkpoint}
    same = [name for name in beside if experiment.runs[name].dataset == run.dataset]
    whose = f", {chosen.run}" if len(same) > 1 and chosen.checkpoint != "codec" else ""
    if isinstance(chosen.checkpoint, int):
        return f"after step {chosen.checkpoint:,}{whose}"
    words = {"untrained": "untrained", "start": f"before {task}", "final": f"after {task}", "codec": "the codec alone"}
    return words[chosen.checkpoint] + whose


def evaluation_facts(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> EvaluationFacts:
    settings = experiment.evaluations[name]
    samples, compared = results.one("sample", name), results.one("fid", name)
    numbers = numbers_of(samples)
    found = taken(EvaluationFacts, numbers) | taken(EvaluationFacts, dict(settings))
    found |= {
        "name": name,
        "dataset": experiment.runs[settings.run].dataset,
        "label": _label(experiment, name),
        "score": _score(compared) if compared else None,
        "gain": gain_of(experiment, results, name),
        "cost": cost_of(experiment, results, name),
        "grid": samples.file("grid.png") if samples else None,
        "settings": flat(settings.model_dump(mode="json")),
        "files": _files(experiment, results, name),
        "curves": read_json(curves) if compared and (curves := compared.file(summaries.CURVES_FILE)) else None,
        "sampler": str(settings.sampler),
        "cache": str(settings.cache) if settings.cache is not None else None,
        "pipefusion": str(settings.pipefusion) if settings.pipefusion is not None else None,
        "is_exact": numbers.get("exact"),
    }
    return EvaluationFacts(**found)


def _files(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> SampleFiles | None:
    """Locate the images of an evaluation and the features of both sides; None without images."""
    chosen, samples = experiment.evaluations[name], results.one("sample", name)
    if samples is None:
        return None
    dataset = experiment.runs[chosen.run].dataset
    real = f"{dataset}.{chosen.real_split}.{chosen.num_real_images or 'all'}.{chosen.extractor}"  # name of the set in the rules
    both = [results.one("features", found) for found in (name, real)]
    generated, real_features = (result.path if result else None for result in both)
    return SampleFiles(samples=samples.path, features=generated, real_features=real_features)


def _score(result: StageResult) -> Score:
    asked = ("precision", "recall", "density", "coverage", "triplets", "pixels")
    more = {key: result.numbers[key] for key in asked if key in result.numbers}
    return Score(**taken(Score, result.numbers), more=more)
