"""Settings of restorations: pixels and bands of scenes that are sampled from a trained prior, given all observed values."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dithc.config.schema.base import Band, Name, Seed, Settings, Size
from dithc.config.schema.evaluations import Sampler, SamplerSpec, WindowsConfig, sampler_spec
from dithc.config.schema.plugins import PluginSampler

if TYPE_CHECKING:
    from dithc.config.schema.experiment import ExperimentConfig

Factor = Annotated[int, Field(ge=2, le=64)]


class HideConfig(Settings):
    """Pixels withheld from a restoration. The restored pixels are compared with them, and the scores are reported."""

    share: float = Field(default=0.3, ge=0.0, le=0.95)
    """Share of the pixels hidden by generated shapes, without `dataset`. 0 compares the bands of `coarse` and `missing` only."""
    dataset: Name | None = None
    """Dataset whose scenes hide pixels by the shapes of their gaps. One scene after the other is used, repeated over larger
    scenes."""


class RestorationConfig(Settings):
    """Restoration of scenes: pixels without data or under clouds, bands of a coarser grid, and missing bands are sampled
    from the prior of a run, given all other pixels. The run must use the codec `pixel`."""

    run: Name
    """Run whose averaged weights after the last step are the prior. Its tiles define bands, units and processing level."""
    dataset: Name
    """Dataset whose scenes are restored."""
    coarse: dict[Band, Factor] = {}
    """Bands that were measured on a grid coarser by this factor, such as {B05: 2, B09: 6}. A complete coarse pixel is the mean
    of its block in the scene."""
    missing: list[Band] = []
    """Bands of the tiles without observed pixels. The scenes need not have them."""
    mtf: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Modulation of the sensor of `coarse` bands at the Nyquist frequency of their grid, such as 0.25. `null`: a coarse pixel
    is the mean of its block."""
    noise: float = Field(default=0.002, gt=0.0, le=1.0)
    """Standard deviation of the noise of observed values, as a share of the range of the band (low to high)."""
    method: Literal["covariance", "jacobian"] = "covariance"
    """Covariance of the clean image given the noisy image. covariance: from the spectra of the train tiles; jacobian: from
    derivatives of the network, which takes several times longer."""
    members: int = Field(default=16, ge=2, le=1000)
    """Number of samples per scene. Mean, standard deviation and quantiles are computed from them."""
    sampler: Sampler | None = None
    """Solver of the reverse process as in `evaluations`. If unset, heun for flows and dpm-solver for other runs."""
    steps: int = Field(default=30, ge=1, le=1000)
    """Network evaluations per member and window."""
    windows: WindowsConfig = WindowsConfig()
    """Windows of the tile size, on which each step evaluates the network."""
    block_size: Size = 1024
    """Side in pixels of the parts of a scene that are sampled separately, at least two tiles. Memory depends on the block, not
    on the scene. Neighbors overlap by two tiles and are cross-faded."""
    batch_size: Size = 32
    """Windows per network call."""
    hide: HideConfig | None = None
    """Withhold pixels and compare them with the restored pixels. `null`: use all pixels, without scores."""
    seed: Seed = 0
    """Seed of the members. A member depends on (seed, scene, member) only, not on the number of ranks."""

    def sampler_for(self, prediction_type: str) -> str | PluginSampler:
        """Return the sampler for a run with this prediction target."""
        return self.sampler or ("heun" if prediction_type == "flow" else "dpm-solver")

    def solver(self, prediction_type: str) -> SamplerSpec:
        """Return the properties of the sampler for a run with this prediction target."""
        return sampler_spec(self.sampler_for(prediction_type))

    def _faults(self) -> Iterator[str]:
        if both := sorted(set(self.coarse) & set(self.missing)):
            yield f"{', '.join(both)} cannot be both in `coarse` and in `missing`: leave it out of one"
        if self.mtf is not None and not self.coarse:
            yield "`mtf` has no effect without `coarse`"
        hide = self.hide
        if hide is not None and hide.dataset is None and not (hide.share or self.coarse or self.missing):
            yield "`hide.share` is 0 and all bands are observed, so no pixel is compared: raise it"

    def faults(self, key: str, experiment: "ExperimentConfig") -> Iterator[str]:
        """Yield contradictions with other sections; `key` is the place of this section. References exist."""
        run, scenes = experiment.runs[self.run], experiment.datasets[self.dataset]
        tiles, predict = experiment.datasets[run.dataset], run.objective.prediction_type
        if (kind := experiment.codecs[tiles.codec].kind) != "pixel":
            yield (
                f"{key}.run {self.run} is trained on latents of codecs.{tiles.codec} ({kind}), and observations are pixels: "
                "use a run on a dataset with a codec of `kind: pixel`"
            )
        if self.solver(predict).is_flow != (predict == "flow"):
            yield (
                f"{key}.sampler {self.sampler} does not fit objective.prediction_type of runs.{self.run}, which is {predict}: "
                "leave it out"
            )
        if self.block_size < 2 * tiles.tiles.size:
            yield f"{key}.block_size {self.block_size} is less than two tiles: set at least {2 * tiles.tiles.size}"
        if (bands := tiles.band_names) is None:
            return
        if unknown := [band for band in (*self.coarse, *self.missing) if band not in bands]:
            yield f"{key} has {', '.join(unknown)}: the tiles of runs.{self.run} have {', '.join(bands)}"
        if set(bands) <= set(self.missing):
            yield f"{key}.missing lists every band, so no pixel is observed: leave a band out"
        present = scenes.band_names or bands
        if absent := [band for band in bands if band not in present and band not in self.missing]:
            yield (
                f"{key}: the scenes of datasets.{self.dataset} lack {', '.join(absent)} of the tiles of runs.{self.run}: list "
                "them in `missing`"
            )
