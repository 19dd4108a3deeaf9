"""Semantic settings of each stage, which determine its result."""

from collections.abc import Callable
from typing import Any

from dithc.config.schema import ExperimentConfig, codecs, datasets, evaluations

SEGMENTS = {"steps", "steps_per_job", "checkpoint_every", "keep_last", "keep_every", "log_every", "validate_every"}
RUN_WITHOUT_EFFECT = SEGMENTS | {
    "micro_batch_size",
    "activation_checkpointing",
    "on_nonfinite",  # affects only the reaction to a bad step; a stopped run may continue with another value
}
COMPARISON = {"real_split", "num_real_images", "extractor", "metrics", "band_triplets"}
"""Settings of an evaluation that determine its scores, but not its images."""
REAL_TILES = {"checkpoint", "real_split", "num_images", "seed"}
"""Settings of an evaluation that determine the tiles that the codec decodes."""
# Locations and checks of files do not affect results: the manifests contain the hashes of the files.
LOCATIONS = {"path", "search", "init_from_file", "dem", "checksum", "optional_files"}
# Affects training only through codecs of display bands, and the spec of their latents contains it.
APPEARANCE = {"rendering"}


def stage_spec(experiment: ExperimentConfig, stage: str, name: str, *, for_rule: bool = False) -> dict[str, Any]:
    """Return the settings that determine the result of a stage; the manifests of its inputs contain their settings.

    Excludes settings that affect only speed, memory or appearance (titles, segments, micro-batches, ranks, resources),
    so that a change of them reruns no stage. With `for_rule`, includes rendering and paths, because a rule runs again for
    other files. `name` is a dataset, codec, run, extractor, evaluation or restoration, `stage` a key of `SPECS`.
    """
    spec = SPECS[stage](experiment, name)
    return spec if for_rule else _without(LOCATIONS | APPEARANCE if stage == "tiles" else LOCATIONS, spec)


def _without(keys: set[str], value: Any) -> Any:
    if isinstance(value, dict):
        keys = keys & {"path"} if "plugin" in value else keys  # a package defines the meaning of its other keys
        return {key: _without(keys, part) for key, part in value.items() if key not in keys}
    return value


def _plugin_spec(settings: datasets.PluginSettings) -> dict[str, Any]:
    return settings.model_dump(mode="json") | {"plugin": settings.plugin}


def _synthesize(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    source = experiment.datasets[name].source
    assert source.synthetic is not None
    gsd = {"gsd_m": source.gsd_m} if source.kind == "gaofen2" else {}
    return {"kind": source.kind, "seed": experiment.seed, **gsd, **source.synthetic.model_dump(mode="json")}


def _ingest(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    source = dataset.source
    plain = _plugin_spec(source) if isinstance(source, datasets.PluginSource) else source.model_dump(mode="json")
    # The prefix separates names from `LOCATIONS`: a layer may be named `dem`.
    layers = {f"layer {name}": layer.model_dump(mode="json") for name, layer in dataset.layers.items()}
    return {"source": plain, **layers}


def _tiles(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    spec = dataset.model_dump(mode="json", include={"tiles", "rendering", "split"})
    conditions = {str(number): _plugin_spec(condition) for number, condition in enumerate(dataset.conditions)}
    return {"seed": experiment.seed, **spec, "conditions": conditions}


def _run(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    run = experiment.runs[name]
    spec = {**run.model_dump(mode="json", exclude=RUN_WITHOUT_EFFECT), "seed": experiment.seed_of(name)}
    spec["model"] |= run.model.block._asdict()  # resolves the defaults of the preset
    spec["lr"] = run.peak_lr
    return spec if run.lr_schedule == "constant" else spec | {"steps": run.steps}  # other schedules end at `steps`


def _codec(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    return _seeded(experiment, experiment.codecs[name])


def _seeded(experiment: ExperimentConfig, model: Any) -> dict[str, Any]:
    if isinstance(model, codecs.PluginCodec | codecs.PluginExtractor):
        return {"seed": experiment.seed, **_plugin_spec(model)}
    return {"seed": experiment.seed, **model.model_dump(mode="json", exclude={"trust_code"})}


def _latents(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    codec = _codec(experiment, dataset.codec)
    sees_display = experiment.codecs[dataset.codec].sees_display
    display = {"rendering": dataset.rendering.model_dump(mode="json")} if sees_display else {}
    return {"codec": codec, **display, "views": dataset.views, "clusters": dataset.clusters}


def _sample(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    evaluation = experiment.evaluations[name]
    if evaluation.checkpoint == "codec":
        name = experiment.runs[evaluation.run].dataset
        codec = _codec(experiment, experiment.datasets[name].codec)
        return {"dataset": name, "codec": codec, **evaluation.model_dump(mode="json", include=REAL_TILES)}
    spec = evaluation.model_dump(mode="json", exclude=COMPARISON | {"batch_size"})
    if isinstance(evaluation.sampler, evaluations.PluginSampler):
        spec["sampler"] = _plugin_spec(evaluation.sampler)
    return spec


def _restore(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    restoration = experiment.restorations[name]
    sampler = restoration.sampler_for(experiment.runs[restoration.run].objective.prediction_type)
    plain = sampler if isinstance(sampler, str) else _plugin_spec(sampler)
    return restoration.model_dump(mode="json", exclude={"batch_size"}) | {"sampler": plain}


def _extractor(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    return _seeded(experiment, experiment.extractors[name])


def _fid(experiment: ExperimentConfig, name: str) -> dict[str, Any]:
    return experiment.evaluations[name].model_dump(mode="json", include=COMPARISON)


SPECS: dict[str, Callable[[ExperimentConfig, str], dict[str, Any]]] = {
    "synthesize": _synthesize,
    "ingest": _ingest,
    "tiles": _tiles,
    "codec": _codec,
    "latents": _latents,
    "train": _run,
    "sample": _sample,
    "restore": _restore,
    "extractor": _extractor,
    "features": _extractor,
    "fid": _fid,
}
