"""Inputs and settings of a sampling run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dithc.config import codecs, evaluations


@dataclass(frozen=True, kw_only=True)
class SamplingJob:
    """Images of one evaluation."""

    name: str
    evaluation: evaluations.EvaluationConfig
    spec: dict[str, Any]  # semantic settings for the manifest
    checkpoint: Path | None  # manifest of the finished training run; None for a codec-only evaluation
    latents: Path | None  # manifest of the training latents, with the classes; None for a codec-only evaluation
    tiles: Path  # manifest of the tiles, which provide scaling and display stretch
    codec_settings: codecs.Codec
    codec: Path | None  # manifest of the decoding codec, if it was trained here
    out: Path  # manifest to write; shards are in the same folder
    degrees: Mapping[str, int] = field(default_factory=dict)  # given fields of `ParallelDegrees`
