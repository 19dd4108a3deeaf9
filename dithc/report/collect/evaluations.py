"""Records of an evaluation: its sampler, its score, and the files of its images."""

from dithc.config import ExperimentConfig
from dithc.core.artifacts import summaries
from dithc.report.collect.datasets import numbers_of, select_fields
from dithc.report.collect.gather import ExperimentResults, StageResult
from dithc.report.collect.runs import flatten
from dithc.report.documents import read_json
from dithc.report.records import EvaluationRecord, SampleFiles, Score


def _label(experiment: ExperimentConfig, evaluation: str) -> str:
    """Describe the evaluated weights, with the run if the dataset has several."""
    config = experiment.evaluations[evaluation]
    run = experiment.runs[config.run]
    task = "fine-tuning" if run.init_from_run or run.init_from_file else "training"
    runs = {settings.run for settings in experiment.evaluations.values() if settings.checkpoint == config.checkpoint}
    dataset_runs = [name for name in runs if experiment.runs[name].dataset == run.dataset]
    suffix = f", {config.run}" if len(dataset_runs) > 1 and config.checkpoint != "codec" else ""
    if isinstance(config.checkpoint, int):
        return f"after step {config.checkpoint:,}{suffix}"
    labels = {"untrained": "untrained", "start": f"before {task}", "final": f"after {task}", "codec": "the codec alone"}
    return labels[config.checkpoint] + suffix


def evaluation_record(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> EvaluationRecord:
    settings = experiment.evaluations[name]
    samples, compared = results.last("sample", name), results.last("fid", name)
    numbers = numbers_of(samples)
    fields = select_fields(EvaluationRecord, numbers) | select_fields(EvaluationRecord, dict(settings))
    fields |= {
        "name": name,
        "dataset": experiment.runs[settings.run].dataset,
        "label": _label(experiment, name),
        "score": _score(compared) if compared else None,
        "grid": samples.file("grid.png") if samples else None,
        "settings": flatten(settings.model_dump(mode="json")),
        "files": _files(experiment, results, name),
        "curves": read_json(curves) if compared and (curves := compared.file(summaries.CURVES_FILE)) else None,
        "sampler": str(settings.sampler),
    }
    return EvaluationRecord(**fields)


def _files(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> SampleFiles | None:
    """Locate the images of an evaluation and the features of both sides; None without images."""
    config, samples = experiment.evaluations[name], results.last("sample", name)
    if samples is None:
        return None
    dataset = experiment.runs[config.run].dataset
    real = f"{dataset}.{config.real_split}.{config.num_real_images or 'all'}.{config.extractor}"  # name of the set in the rules
    feature_sets = [results.last("features", set_name) for set_name in (name, real)]
    generated, real_features = (result.path if result else None for result in feature_sets)
    return SampleFiles(samples=samples.path, features=generated, real_features=real_features)


def _score(result: StageResult) -> Score:
    keys = ("precision", "recall", "triplets", "pixels")
    metrics = {key: result.summary[key] for key in keys if key in result.summary}
    return Score(**select_fields(Score, result.summary), more=metrics)
