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
# Younger than stores that are in use: only what differs from the defaults, with which those were made, is in the digest.
MUON_RULE = 2  # which matrices are its (train/matrices.py): 1 had the modulations too
RUN_YOUNGER = {"backend", "objective", "lr_schedule", "decay_share", "betas", "optimizer", "guide"}
SOURCE_YOUNGER = {
    "sentinel2": {"bands", "clouds"},
    "sentinel2-array": {"clouds"},
    "geotiff": {"clouds"},
    "gaofen2": {"height_m", "dem", "calibrate", "coefficients", "pansharpen", "max_shift"},
    "image-folder": {"layout"},
}
COARSE_RULE = 2  # which files of a Sentinel-2 product are read for grids of more than 10 m: 1 had the finest always
SPLIT_YOUNGER = {"cell_m", "buffer_m", "duplicates"}
CODEC_YOUNGER = {"equivariance", "latent_noise"}
EXTRACTOR_YOUNGER = {"defects"}
EVALUATION_YOUNGER = {
    "order",
    "times",
    "epsilon_scaling",
    "guidance_interval",
    "guide",
    "ema",
    "size",
    "windows",
    "cache",
    "pipefusion",
}
COMPARISON_YOUNGER = {"metrics", "triplets"}
EVALUATION_ELSEWHERE = {"extractor", "real_split", "real_images", "batch", *COMPARISON_YOUNGER}
# Of no effect on what a codec gives back.
OF_SAMPLES = {"weights", "sampler", "steps", "guidance", "guidance_channels", *EVALUATION_YOUNGER}
# Where something stands, or whether it was checked, does not decide a result: the hashes of the bytes are in the manifests.
PLACES = {"path", "search", "init_file", "dem", "checksum", "may_lack"}
LOOKS = {"display"}  # of tiles; nothing that is learnt sees it, but for codecs of pictures, whose latents name it


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
    if isinstance(source, datasets.InstalledSource):
        return {"source": _brought(source)}
    younger = {"include", "exclude"} | SOURCE_YOUNGER.get(source.kind, set())
    spec = source.model_dump(mode="json", exclude=younger)
    spec |= source.model_dump(mode="json", include=younger, exclude_defaults=True)
    if isinstance(source, datasets.Sentinel2) and source.gsd_m > 10.0:
        spec["files"] = COARSE_RULE
    return {"source": spec}


def _tiles(experiment: Experiment, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    spec = dataset.model_dump(mode="json", include={"tiles", "scaling"})
    spec["display"] = dataset.rendering.model_dump(mode="json")  # its name in stores that are in use
    split = dataset.split.model_dump(mode="json", exclude=SPLIT_YOUNGER)
    split |= dataset.split.model_dump(mode="json", include=SPLIT_YOUNGER, exclude_defaults=True)
    conditions = {str(number): _brought(one) for number, one in enumerate(dataset.conditions)}
    return {"seed": experiment.seed, **spec, "split": split} | ({"conditions": conditions} if conditions else {})


def _run(experiment: Experiment, name: str) -> dict[str, Any]:
    run = experiment.runs[name]
    left_out = RUN_WITHOUT_EFFECT | RUN_YOUNGER | {"seed", "augment"}
    spec = {"seed": experiment.seed_of(name), **run.model_dump(mode="json", exclude=left_out)}
    spec |= (
        {"augment": "dihedral"} if run.augment == "dihedral" else {"flip": run.augment == "mirror"}
    )  # its older name
    if run.ema.lengths is None:  # younger too
        del spec["ema"]["lengths"]
    blocks = set(training.BlockKind._fields)  # younger too
    spec["model"] = {
        name: value for name, value in spec["model"].items() if name not in blocks
    } | run.model.block_changes
    spec |= run.model_dump(mode="json", include=RUN_YOUNGER, exclude_defaults=True)
    if run.optimizer.kind == "muon":
        spec["muon_rule"] = MUON_RULE
    return spec if run.lr_schedule == "constant" else spec | {"steps": run.steps}  # to which the others fall


def _codec(experiment: Experiment, name: str) -> dict[str, Any]:
    codec = experiment.codecs[name]
    if isinstance(codec, codecs.InstalledCodec):
        return {"seed": experiment.seed, **_brought(codec)}
    younger = codec.model_dump(mode="json", include=CODEC_YOUNGER, exclude_defaults=True)
    return {"seed": experiment.seed, **codec.model_dump(mode="json", exclude={"trust", *CODEC_YOUNGER}), **younger}


def _latents(experiment: Experiment, name: str) -> dict[str, Any]:
    dataset = experiment.datasets[name]
    codec = _codec(experiment, dataset.codec)
    sees_display = experiment.codecs[dataset.codec].sees_display
    shown = {"display": dataset.rendering.model_dump(mode="json")} if sees_display else {}
    views = {} if dataset.views == 2 else {"views": dataset.views}  # younger than stores that are in use
    return {"codec": codec, **shown, **views}


def _sample(experiment: Experiment, name: str) -> dict[str, Any]:
    evaluation = experiment.evaluations[name]
    if evaluation.at == "codec":  # real tiles of that split, of the data set alone
        left_out = (EVALUATION_ELSEWHERE | OF_SAMPLES | {"run"}) - {"real_split"}
        name = experiment.runs[evaluation.run].dataset
        return {
            "dataset": name,
            "codec": _codec(experiment, experiment.datasets[name].codec),
            **evaluation.model_dump(mode="json", exclude=left_out),
        }
    spec = evaluation.model_dump(mode="json", exclude=EVALUATION_ELSEWHERE | EVALUATION_YOUNGER)
    spec |= evaluation.model_dump(mode="json", include=EVALUATION_YOUNGER, exclude_defaults=True)
    if evaluation.windows is not None:
        spec["windows"] = evaluation.windows.model_dump(mode="json")
    if isinstance(evaluation.sampler, training.InstalledSampler):
        spec["sampler"] = _brought(evaluation.sampler)
    if evaluation.cache is not None:
        spec["cache"] = evaluation.cache.model_dump(mode="json")
    if evaluation.pipefusion is not None:
        spec["pipefusion"] = evaluation.pipefusion.decides
    return spec if evaluation.ema is None else spec | {"snapshots": experiment.snapshots_of(evaluation)}


def _extractor(experiment: Experiment, name: str) -> dict[str, Any]:
    extractor = experiment.extractors[name]
    if isinstance(extractor, codecs.InstalledExtractor):
        return {"seed": experiment.seed, **_brought(extractor)}
    younger = extractor.model_dump(mode="json", include=EXTRACTOR_YOUNGER, exclude_defaults=True)
    return {
        "seed": experiment.seed,
        **extractor.model_dump(mode="json", exclude={"trust", *EXTRACTOR_YOUNGER}),
        **younger,
    }


def _fid(experiment: Experiment, name: str) -> dict[str, Any]:
    evaluation = experiment.evaluations[name]
    younger = evaluation.model_dump(mode="json", include=COMPARISON_YOUNGER, exclude_defaults=True)
    return evaluation.model_dump(mode="json", include={"real_split", "real_images", "extractor"}) | younger


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
