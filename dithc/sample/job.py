"""What a sampling is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dithc.config import codecs, training


@dataclass(frozen=True, kw_only=True)
class Job:
    """The images of one evaluation.

    Attributes:
        name: the evaluation.
        evaluation: its settings.
        spec: the semantic settings that go into the manifest.
        checkpoint: manifest of the run at the end of its training; None for an evaluation of the codec alone.
        latents: manifest of the latents it was trained on, likewise; their classes give the labels.
        tiles: manifest of the tiles; their scaling and display stretch are used.
        codec_settings: the codec that decodes.
        codec: manifest of that codec, where it was trained here.
        snapshots: steps of the checkpoints of which `evaluation.ema` is made; empty where no length is asked for.
        out: the manifest to write; shards stand beside it.
        parallel_vae: whether all ranks that share an image decode it together (see `dithc.parallel.decode.Decoding`).
        degrees: of how a shard is cut among ranks, those that are given (see `dithc.parallel.Degrees`).
    """

    name: str
    evaluation: training.Evaluation
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
