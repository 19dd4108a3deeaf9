"""What a result depends on: the semantic settings of each stage, and the digest that names them."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from dithc.config import Experiment, codecs, datasets, training

DIGEST_LENGTH = 12
RUN_WITHOUT_EFFECT = {
    *("steps", "segment", "micro_batch", "recompute", "checkpoint_every", "keep_last", "keep_every", "log_every"),
    "validate_every",
    "nonfinite",  # decides only whether a training goes on after a bad step; one that stopped may be continued with another
}
COMPARISON = {"real_split", "real_images", "extractor", "metrics", "triplets"}
"""Settings of an evaluation that decide its scores, and not its images."""
REAL_TILES = {"at", "real_split", "images", "seed"}
"""Settings of an evaluation that decide which tiles its codec restores."""
# Where something stands, or whether it was checked, does not decide a result: the hashes of the bytes are in the manifests.
PLACES = {"path", "search", "init_file", "dem", "checksum", "may_lack"}
LOOKS = {"rendering"}  # of tiles; nothing that is learnt sees it, but for codecs of pictures, whose latents name it


def digest(spec: object) -> str:
    """First 12 hex digits of the SHA-256 of a JSON value written canonically (sorted keys, no spaces)."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def stage_spec(experiment: Experiment, stage: str, name: str, *, of_rule: bool = False) -> dict[str, Any]:
    """The settings of one stage that decide its result; its inputs' settings are in their own manifests.

    Left out is what changes only speed, memory or looks (titles, segment lengths, micro-batches, ranks, resources), so
    that editing it reruns nothing.

    Args:
        experiment: the whole configuration.
        stage: one of the keys of `SPECS`.
        name: data set, codec, run, extractor or evaluation.
        of_rule: with looks and the places of files: a rule runs again when it is pointed to other files.
    """
    spec = SPECS[stage](experiment, name)
    return spec if of_rule else _without(PLACES | LOOKS if stage == "tiles" else PLACES, spec)


def _without(keys: set[str], value: Any) -> Any:
    if isinstance(value, dict):
        keys = keys & {"path"} if "extension" in value else keys  # other names mean to a package what it likes
        return {key: _without(keys, part) for key, part in value.items() if key not in keys}
    return value


def _brought(settings: datasets.Installed) -> dict[str, Any]:
    """Settings that an installed package brings, and which version of it."""
    return settings.model_dump(mode="json") | {"extension": settings.extension}


def _source(experiment: Experiment, name: str) -> datasets.Source:
    return experiment.datasets[name].source


def _synthesize(experiment: Experiment, name: str) -> dict[str, Any]:
    source = _source(experiment, name)
    assert source.synthetic is not None
    gsd = {"gsd_m": source.gsd_m} if source.kind == "gaofen2" else {}
    return {"kind": source.kind, "seed": experiment.seed, **gsd, **source.synthetic.model_dump(mode="json")}


def _stage(experiment: Experiment, name: str) -> dict[str, Any]:
    source = _source(experiment, name)
    return {
        "source": _brought(source) if isinstance(source, datasets.InstalledSource) else source.model_dump(mode="json")
    }


def _tiles(experiment: Experiment, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    spec = dataset.model_dump(mode="json", include={"tiles", "scaling", "rendering", "split"})
    conditions = {str(number): _brought(one) for number, one in enumerate(dataset.conditions)}
    return {"seed": experiment.seed, **spec, "conditions": conditions}


def _run(experiment: Experiment, name: str) -> dict[str, Any]:
    run = experiment.runs[name]
    spec = {**run.model_dump(mode="json", exclude=RUN_WITHOUT_EFFECT), "seed": experiment.seed_of(name)}
    spec["model"] |= run.model.block._asdict()  # with the defaults of the preset
    return spec if run.lr_schedule == "constant" else spec | {"steps": run.steps}  # to which the others fall


def _codec(experiment: Experiment, name: str) -> dict[str, Any]:
    codec = experiment.codecs[name]
    if isinstance(codec, codecs.InstalledCodec):
        return {"seed": experiment.seed, **_brought(codec)}
    return {"seed": experiment.seed, **codec.model_dump(mode="json", exclude={"trust"})}


def _latents(experiment: Experiment, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    codec = _codec(experiment, dataset.codec)
    sees_display = experiment.codecs[dataset.codec].sees_display
    shown = {"rendering": dataset.rendering.model_dump(mode="json")} if sees_display else {}
    return {"codec": codec, **shown, "views": dataset.views}


def _sample(experiment: Experiment, name: str) -> dict[str, Any]:
    evaluation = experiment.evaluations[name]
    if evaluation.at == "codec":
        name = experiment.runs[evaluation.run].dataset
        codec = _codec(experiment, experiment.datasets[name].codec)
        return {"dataset": name, "codec": codec, **evaluation.model_dump(mode="json", include=REAL_TILES)}
    spec = evaluation.model_dump(mode="json", exclude=COMPARISON | {"batch"})
    if isinstance(evaluation.sampler, training.InstalledSampler):
        spec["sampler"] = _brought(evaluation.sampler)
    if evaluation.pipefusion is not None:
        spec["pipefusion"] = evaluation.pipefusion.decides
    return spec if evaluation.ema is None else spec | {"snapshots": experiment.snapshots_of(evaluation)}


def _extractor(experiment: Experiment, name: str) -> dict[str, Any]:
    extractor = experiment.extractors[name]
    if isinstance(extractor, codecs.InstalledExtractor):
        return {"seed": experiment.seed, **_brought(extractor)}
    return {"seed": experiment.seed, **extractor.model_dump(mode="json", exclude={"trust"})}


def _fid(experiment: Experiment, name: str) -> dict[str, Any]:
    return experiment.evaluations[name].model_dump(mode="json", include=COMPARISON)


SPECS: dict[str, Callable[[Experiment, str], dict[str, Any]]] = {
    "synthesize": _synthesize,
    "stage": _stage,
    "tiles": _tiles,
    "codec": _codec,
    "latents": _latents,
    "train": _run,
    "sample": _sample,
    "extractor": _extractor,
    "features": _extractor,
    "fid": _fid,
}
