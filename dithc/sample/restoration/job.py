"""Inputs and settings of a restoration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.config import codecs, evaluations
from dithc.core.artifacts import Manifest, digest
from dithc.sample.job import SamplingJob


@dataclass(frozen=True, kw_only=True)
class RestorationJob:
    """Scenes to restore with one prior; paths are manifests."""

    name: str
    settings: evaluations.RestorationConfig
    spec: dict[str, Any]  # semantic settings for the manifest
    checkpoint: Path  # of the finished training run
    tiles: Path  # of the training run
    training: Path  # scenes of these tiles
    scenes: Path  # to restore
    masks: Path | None  # scenes with gaps that hide pixels; None without `hide.dataset`
    codec_settings: codecs.Codec
    codec: Path | None = None  # of the training run, if it was trained here
    out: Path  # manifest to write; a folder per scene is created next to it

    def inputs(self) -> dict[str, str]:
        """Return the digest of each input manifest, by path."""
        stages = [(self.checkpoint, "train"), (self.tiles, "tiles")]
        stages += [(path, "ingest") for path in (self.training, self.scenes, self.masks) if path is not None]
        stages += [(self.codec, "codec")] if self.codec is not None else []
        return {str(path): Manifest.read(path, stage=stage).digest for path, stage in stages}

    @property
    def scores(self) -> Path:
        """File of the comparison with hidden pixels."""
        return self.out.with_name("scores.json")

    @property
    def regression(self) -> Path | None:
        """File of the regression U-Net, which depends on tiles and hidden pixels only; None without regression."""
        settings = self.settings
        if settings.hide is None or not settings.hide.regression_minutes:
            return None
        keys = {"hide", "coarse", "missing", "mtf", "seed"}
        inputs = [Manifest.read(path).digest for path in (self.tiles, self.masks) if path is not None]
        name = digest({"settings": settings.model_dump(mode="json", include=keys), "inputs": inputs})
        return self.out.with_name(f"regression-{name[:12]}.pt")

    def prior(self) -> SamplingJob:
        """Return the sampling job of the network that is the prior."""
        evaluation = evaluations.EvaluationConfig(run=self.settings.run, extractor="none")
        paths: dict[str, Any] = {"checkpoint": self.checkpoint, "latents": None, "tiles": self.tiles, "out": self.out}
        return SamplingJob(
            name=self.name,
            evaluation=evaluation,
            spec=self.spec,
            codec_settings=self.codec_settings,
            codec=None,
            **paths,
        )
