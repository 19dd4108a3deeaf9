"""Inputs and settings of a sampling run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dithc.config import codecs, training


@dataclass(frozen=True, kw_only=True)
class SamplingJob:
    """Images of one evaluation.

    Attributes:
        name: Name of the evaluation.
        evaluation: Its settings.
        spec: Semantic settings for the manifest.
        checkpoint: Manifest of the finished training run; None for a codec-only evaluation.
        latents: Manifest of the training latents, which provide the classes of labels; None for a codec-only
            evaluation.
        tiles: Manifest of the tiles, which provide scaling and display stretch.
        codec_settings: Settings of the decoding codec.
        codec: Manifest of that codec, if it was trained here.
        snapshots: Steps of the checkpoints combined into `evaluation.ema_std`; empty without a requested length.
        out: Manifest to write; shards are in the same folder.
        parallel_vae: Whether all ranks that share an image decode it together (see
        `dithc.sample.parallel.parallel_decoder.ParallelDecoder`). degrees: Given degrees of the division of a shard among ranks
        (see `dithc.sample.parallel.ParallelDegrees`).
    """

    name: str
    evaluation: training.EvaluationConfig
    spec: dict[str, Any]
    checkpoint: Path | None
    latents: Path | None
    tiles: Path
    codec_settings: codecs.Codec
    codec: Path | None
    out: Path
    snapshots: tuple[int, ...] = ()
    degrees: Mapping[str, int] = field(default_factory=dict)
    parallel_vae: Literal["auto"] | bool = False
