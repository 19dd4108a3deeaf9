"""What a result depends on: the semantic settings of each stage, and the digest that names them."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from dithc.config import Experiment, datasets

DIGEST_LENGTH = 12
RUN_WITHOUT_EFFECT = {"steps", "segment", "micro_batch", "recompute", "checkpoint_every", "keep_last", "log_every"}
EVALUATION_ELSEWHERE = {"extractor", "real_split", "batch"}


def digest(spec: object) -> str:
    """First 12 hex digits of the SHA-256 of a JSON value written canonically (sorted keys, no spaces)."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def stage_spec(experiment: Experiment, stage: str, name: str) -> dict[str, Any]:
    """The settings of one stage that decide its result; its inputs' settings are in their own manifests.

    Left out is what changes only speed, memory or looks (titles, segment lengths, micro-batches, ranks, resources), so
    that editing it reruns nothing.

    Args:
        experiment: the whole configuration.
        stage: one of the keys of `SPECS`.
        name: data set, codec, run, extractor or evaluation.
    """
    return SPECS[stage](experiment, name)


def _source(experiment: Experiment, name: str) -> datasets.Source:
    return experiment.datasets[name].source


def _synthesize(experiment: Experiment, name: str) -> dict[str, Any]:
    source = _source(experiment, name)
    assert source.synthetic is not None
    return {"kind": source.kind, "seed": experiment.seed, **source.synthetic.model_dump(mode="json")}


def _tiles(experiment: Experiment, name: str) -> dict[str, Any]:
    parts = {"tiles", "split", "scaling", "display"}
    return {"seed": experiment.seed, **experiment.datasets[name].model_dump(mode="json", include=parts)}


def _run(experiment: Experiment, name: str) -> dict[str, Any]:
    return {"seed": experiment.seed, **experiment.runs[name].model_dump(mode="json", exclude=RUN_WITHOUT_EFFECT)}


def _codec(experiment: Experiment, name: str) -> dict[str, Any]:
    return {"seed": experiment.seed, **experiment.codecs[name].model_dump(mode="json")}


def _extractor(experiment: Experiment, name: str) -> dict[str, Any]:
    return {"seed": experiment.seed, **experiment.extractors[name].model_dump(mode="json")}


SPECS: dict[str, Callable[[Experiment, str], dict[str, Any]]] = {
    "synthesize": _synthesize,
    "stage": lambda experiment, name: {"source": _source(experiment, name).model_dump(mode="json")},
    "tiles": _tiles,
    "codec": _codec,
    "latents": lambda experiment, name: {"codec": experiment.datasets[name].codec},
    "train": _run,
    "sample": lambda experiment, name: experiment.evaluations[name].model_dump(
        mode="json", exclude=EVALUATION_ELSEWHERE
    ),
    "extractor": _extractor,
    "features": _extractor,
    "fid": lambda experiment, name: experiment.evaluations[name].model_dump(
        mode="json", include={"real_split", "extractor"}
    ),
}
