"""Settings of evaluations (sampling and scoring of a run) and of restorations."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, SerializeAsAny

from dithc.config.schema.base import Band, Condition, Fraction, Name, Seed, Settings, Size
from dithc.config.schema.plugins import PluginSampler as PluginSampler
from dithc.config.schema.plugins import plugin_field

LARGEST_SCENE = 1 << 16  # pixels per side; the latent of the scene is in memory, and one band takes 8 GiB on disk
LARGEST_OVERLAP = 0.9  # share of a side; a hundred predictions of each pixel
MAX_STEPS = 9_999_999  # training steps; file names have seven digits


Factor = Annotated[int, Field(ge=2, le=64)]  # side of a coarse pixel over the side of a pixel
Metric = Literal["precision-recall", "bands", "indices", "spectra"]
OF_PIXELS = {"bands", "indices", "spectra"}


@dataclass(frozen=True)
class SamplerSpec:
    """Properties of a sampler: noise or flow, valid values of `solver_order`, network evaluations per interval."""

    is_flow: bool = False
    orders: tuple[int, ...] = ()
    evaluations: int = 1


SAMPLER_SPECS = {
    "ddpm": SamplerSpec(),
    "ddim": SamplerSpec(),
    "dpm-solver": SamplerSpec(orders=(1, 2, 3)),
    "unipc": SamplerSpec(orders=(1, 2, 3)),
    "euler": SamplerSpec(is_flow=True),
    "heun": SamplerSpec(is_flow=True, evaluations=2),
}
"""All built-in samplers; their functions are in `dithc.diffusion`."""

if TYPE_CHECKING:
    BuiltInSampler = str
else:
    BuiltInSampler = Literal[*SAMPLER_SPECS]
Sampler = Annotated[
    BuiltInSampler | SerializeAsAny[PluginSampler],
    plugin_field(PluginSampler, list(SAMPLER_SPECS), BuiltInSampler, bare=True),
]


def sampler_spec(sampler: str | PluginSampler) -> SamplerSpec:
    """Return the properties of a built-in sampler or of a sampler of an installed package."""
    if isinstance(sampler, PluginSampler):
        return SamplerSpec(is_flow=sampler.predicts == "flow", orders=sampler.orders)
    return SAMPLER_SPECS[sampler]


class WindowsConfig(Settings):
    """Sampling of a scene larger than the tiles: each step evaluates the network on windows of the tile size."""

    overlap: float = Field(default=0.25, ge=0.0, le=LARGEST_OVERLAP)
    """Share of a window's side that overlaps the next window. Predictions are averaged there, with weights that fall
    toward the border of each window (MultiDiffusion). The network is evaluated 1 / (1 - overlap)^2 times per pixel and
    step: 1.8 times with 0.25, 4 times with 0.5."""
    random_shift: bool = False
    """Shift the grid of windows in each step by an offset derived from (seed, timestep), so that borders move
    (SpotDiffusion). Windows then need no overlap: `overlap: 0, random_shift: true` has the fewest evaluations."""

    def _faults(self) -> Iterator[str]:
        if self.overlap == 0.0 and not self.random_shift:
            yield "windows without overlap and shift leave seams: set `overlap: 0.25` or `random_shift: true`"


class EvaluationConfig(Settings):
    """Comparison of samples of one run with real tiles."""

    run: Name
    """Run that provides the weights for sampling."""
    checkpoint: Literal["final", "start", "untrained", "codec"] | Annotated[int, Field(ge=1, le=MAX_STEPS)] = "final"
    """Time of the weights. final: after the last step; start: before the first step (for fine-tuning: the pre-trained
    weights); untrained: freshly initialized; a number: after this step, if its checkpoint is kept. codec: real tiles
    decoded by the codec instead of samples, which is the best quality that its samples can reach."""
    weights: Literal["ema", "raw"] = "ema"
    """Averaged or raw weights; recorded with the score."""
    num_images: int = Field(default=10000, ge=1, le=10**8)
    """Number of generated images: at least one for a scene (`windows`), else at least two, for a score."""
    image_size: int | None = Field(default=None, ge=1, le=LARGEST_SCENE)
    """Pixels of a side of an image, such as 4096; the size of the dataset's tiles if unset. A larger image needs
    `windows`, or a run on tiles of that size. Must be a multiple of the codec's `downsampling_factor`."""
    windows: WindowsConfig | None = None
    """Sampling of a scene larger than the network's tiles. `null`: images of the tile size. A scene and its GeoTIFF
    (`dithc export`) are written separately, by rows. A scene has no score."""
    sampler: Sampler = "ddpm"
    """Solver of the reverse process: euler and heun for runs with `objective.prediction_type: flow`, the others for all other
    runs. Select a sampler of an installed package by its name, or with settings: `{kind: NAME, ...}`."""
    solver_order: Literal[1, 2, 3] | None = None
    """Order of dpm-solver or unipc, 2 if unset. Order 3 is better only from ten steps on."""
    steps: int = Field(default=250, ge=1, le=1000)
    """Network evaluations per image (before guidance), all of which are used. heun uses two per interval, and with an
    odd number one for the last interval."""
    conditions: dict[Condition, Annotated[list[float], Field(min_length=1, max_length=2)]] = {}
    """Values of the run's `conditions` for all images; the others are absent, except `view`. In degrees, days and meters:
    `{place: [lon, lat], season: [day of the year], sun: [elevation, azimuth], gsd: [10], cloud: [0]}`. Guidance acts on the
    label only."""
    guidance_scale: float = Field(default=1.0, ge=0.0, le=1000.0)
    """Guidance scale; 1 for no guidance. `dithc search-guidance` finds the value for your network."""
    guidance_channels: Literal["all", "first3"] = "all"
    """Guide all latent channels, or the first three, as in the published DiT samples."""
    guidance_interval: list[Fraction] | None = Field(default=None, min_length=2, max_length=2)
    """Guide only between these two timesteps, as shares of the training timesteps: 0 is the least noise, 1 the most.
    Other steps cost half. `null`: guide all steps."""
    guidance_reference: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    """Prediction from which guidance moves away: with the same label, by the run's weights after this step, if its checkpoint
    is kept (autoguidance). `null`: the prediction without a label by the sampled weights."""
    batch_size: Size = 32
    """Images per batch of one rank."""
    extractor: Name
    """Feature extractor (section `extractors`)."""
    real_split: Literal["train", "val", "test", "all"] = "all"
    """Split of the real tiles to compare with."""
    num_real_images: int | None = Field(default=None, ge=2, le=10**8)
    """Number of real tiles, chosen by the experiment's seed; all tiles of the split if unset."""
    metrics: list[Metric] = Field(default=[], max_length=len(get_args(Metric)))
    """Metrics in addition to FID and KID. From features: precision-recall (3 neighbors). From pixels in the units of the
    dataset: bands (distance of each band's distribution, spectral angle, correlations), indices (NDVI and NDWI), spectra
    (radial power of each band)."""
    band_triplets: list[tuple[Band, Band, Band]] = Field(default=[], max_length=16)
    """FID and KID of other bands than the display bands, passed to the extractor as red, green and blue, such as [B12,
    B11, B04]. Each band is scaled from its 1st to its 99th percentile, on both sides."""
    seed: Seed = 0
    """Seed of the images. Image i depends on (seed, i) only, not on the number of ranks."""

    def condition_faults(self, key: str, run: Any) -> Iterator[str]:
        """Yield conditions that the `RunConfig` does not have, and bands that it does not generate."""
        if "view" in self.conditions:
            yield f"{key}.conditions has view, but images always have the orientation of the tiles: leave it out"
        known = [name for name in run.conditions if name != "view"]
        if unknown := sorted(set(self.conditions) - {*known, "view"}):
            has = ", ".join(known) or "none"
            yield f"{key}.conditions has {', '.join(unknown)}; the conditions of runs.{self.run} with values are: {has}"
        given = [name for name, group in run.band_groups.items() if group.role == "condition"]
        if given and self.checkpoint != "codec":
            yield (
                f"{key}.run {self.run} does not generate its band_groups {', '.join(given)} of `role: condition`: use "
                "`restorations`, or set `role: modeled`"
            )

    @property
    def solver(self) -> SamplerSpec:
        """Properties of the sampler."""
        return sampler_spec(self.sampler)

    @property
    def needs_pixel_statistics(self) -> bool:
        """True if the evaluation requests statistics of pixels in the units of the dataset."""
        return bool(OF_PIXELS & set(self.metrics))

    @property
    def triplet_names(self) -> list[str]:
        """Names of the triplets, one word each."""
        return ["+".join(triplet) for triplet in self.band_triplets]

    @property
    def needs_copy_search(self) -> bool:
        """True if trained weights generate the images, and the real tiles include the complete training data."""
        return (
            self.checkpoint not in ("codec", "untrained", "start")
            and self.num_real_images is None
            and self.real_split in ("train", "all")
        )

    def _faults(self) -> Iterator[str]:
        for name, values in (("metrics", list[str](self.metrics)), ("band_triplets", self.triplet_names)):
            if repeated := sorted({value for value in values if values.count(value) > 1}):
                yield f"`{name}` has {', '.join(repeated)} twice: leave one out"
        yield from self._check_scene()
        if self.solver_order is not None and self.solver_order not in self.solver.orders:
            names = " and ".join(name for name, spec in SAMPLER_SPECS.items() if self.solver_order in spec.orders)
            yield f"`solver_order` applies to the samplers {names}; `sampler` is {self.sampler}"
        if self.guidance_interval is not None:
            low, high = self.guidance_interval
            if low > high:
                yield f"`guidance_interval` is not ascending: it starts at {low} and ends at {high}"
            if self.guidance_scale == 1.0:
                yield "`guidance_interval` requires a `guidance_scale` other than 1"
        if self.guidance_reference is not None:
            if self.checkpoint == self.guidance_reference:
                yield f"`guidance_reference: {self.guidance_reference}` is also the `checkpoint`: choose an earlier step"
            if self.guidance_scale <= 1.0:
                yield (
                    f"`guidance_reference` requires `guidance_scale` above 1; with {self.guidance_scale}, it has no effect"
                )
            if self.checkpoint in ("start", "untrained", "codec"):
                yield (
                    f"`guidance_reference: {self.guidance_reference}` requires weights after the first step; "
                    f"`checkpoint` is {self.checkpoint}"
                )

    def _check_scene(self) -> Iterator[str]:
        for key in ("image_size", "windows"):
            if self.checkpoint == "codec" and getattr(self, key):
                yield f"`{key}` applies to generated images, and `checkpoint` is codec: leave it out"
        if self.windows is None and self.num_images < 2:
            yield "`num_images` is 1, and a score compares at least two: raise it (or set `windows`, for a scene)"
        if self.windows is not None and self.image_size is None:
            yield "`windows` require the `image_size` of a scene: set it, such as 4096, or leave `windows` out"
        if self.windows is not None and (self.metrics or self.band_triplets):
            yield "`metrics` and `band_triplets` require a score, and a scene (`windows`) has no score"


class HideConfig(Settings):
    """Pixels withheld from a restoration. The restored pixels are compared with them, and the scores are reported."""

    share: float = Field(default=0.3, ge=0.0, le=0.95)
    """Share of the pixels hidden by generated shapes, without `dataset`. 0 compares the bands of `coarse` and `missing` only."""
    dataset: Name | None = None
    """Dataset of scenes with gaps. Their shapes hide pixels: for each scene a random crop, mirrored at random. It is continued by
    reflection over a larger scene."""
    dataset_share: list[Fraction] = Field(default=[0.05, 0.95], min_length=2, max_length=2)
    """Smallest and largest share of the pixels of a scene that `dataset` hides."""
    regression_minutes: float = Field(default=0.0, ge=0.0, le=100_000.0)
    """Training time of a regression U-Net, which is compared with the restoration. Use the training time of the prior. One rank
    trains the network on the train tiles, with the same kind of hidden pixels and coarse bands. 0: no such network."""

    def _faults(self) -> Iterator[str]:
        if self.dataset is None:
            yield from self._check_unused("hide.dataset", "dataset_share")
        elif self.share != type(self).model_fields["share"].default:
            yield "`hide.share` has no effect with `hide.dataset`: set `hide.dataset_share`, or leave `dataset` out"
        if self.dataset_share[0] > self.dataset_share[1]:
            yield f"`hide.dataset_share` is not ascending: {self.dataset_share}"


class RestorationConfig(Settings):
    """Restoration of scenes: pixels without data or under clouds, bands of a coarser grid, and missing bands are sampled
    from the prior of a run, given all other pixels. The codec of the run is `pixel`. With a
    `kl-vae`, only gaps are restored: latents that hidden pixels hardly influence are observed, and observed pixels replace the
    decoded pixels."""

    run: Name
    """Run of the prior: its averaged weights after the last step. Its tiles define bands, units and processing level."""
    dataset: Name
    """Dataset with the scenes to restore."""
    coarse: dict[Band, Factor] = {}
    """Bands that were measured on a grid coarser by this factor, such as {B05: 2, B09: 6}. A complete coarse pixel is the mean
    of its block in the scene."""
    missing: list[Band] = []
    """Bands of the tiles without observed pixels. The scenes need not have them."""
    through_clouds: list[Band] = []
    """Bands that clouds do not hide, such as radar and elevation: observed wherever scenes have data, also with `hide`."""
    mtf: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Modulation of the sensor of `coarse` bands at the Nyquist frequency of their grid, such as 0.25. `null`: a coarse pixel
    is the mean of its block."""
    noise: float = Field(default=0.002, gt=0.0, le=1.0)
    """Standard deviation of the noise of observed values, as a share of the range of the band (low to high)."""
    members: int = Field(default=16, ge=4, le=1000, multiple_of=2)
    """Number of samples per scene, even. Mean, standard deviation and quantiles are computed from them. Members 2 k and
    2 k + 1 have opposite noise, which reduces the random error of the mean."""
    sampler: Sampler | None = None
    """Solver of the reverse process as in `evaluations`. If unset, euler for flows and dpm-solver for other runs."""
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

    @property
    def gap_source(self) -> str | None:
        """Dataset of which some scene must have gaps (`hide`)."""
        return self.hide.dataset if self.hide is not None and self.hide.dataset_share[0] > 0 else None

    def sampler_for(self, prediction_type: str) -> str | PluginSampler:
        """Return the sampler for a run with this prediction target."""
        return self.sampler or ("euler" if prediction_type == "flow" else "dpm-solver")

    def solver(self, prediction_type: str) -> SamplerSpec:
        """Return the properties of the sampler for a run with this prediction target."""
        return sampler_spec(self.sampler_for(prediction_type))

    def _faults(self) -> Iterator[str]:
        for name, bands in (("coarse", self.coarse), ("through_clouds", self.through_clouds)):
            if both := sorted(set(bands) & set(self.missing)):
                yield f"{', '.join(both)} cannot be both in `{name}` and in `missing`: leave it out of one"
        for name, listed in (("missing", self.missing), ("through_clouds", self.through_clouds)):
            if len(set(listed)) < len(listed):
                yield f"`{name}` names a band twice: {', '.join(listed)}"
        if self.mtf is not None and not self.coarse:
            yield "`mtf` has no effect without `coarse`"
        hide = self.hide
        if hide is not None and hide.dataset is None and not (hide.share or self.coarse or self.missing):
            yield "`hide.share` is 0 and all bands are observed, so no pixel is compared: raise it"

    def faults(self, key: str, experiment: Any) -> Iterator[str]:
        """Yield contradictions with other sections of an `ExperimentConfig`; `key` is the place of this section."""
        run, scenes = experiment.runs[self.run], experiment.datasets[self.dataset]
        tiles, predict = experiment.datasets[run.dataset], run.objective.prediction_type
        kind = experiment.codecs[tiles.codec].kind
        if kind not in ("pixel", "kl-vae") or (kind != "pixel" and (self.coarse or self.missing)):
            yield (
                f"{key}.run {self.run} is trained on latents of codecs.{tiles.codec} ({kind}): use a run on a dataset with a "
                "codec of `kind: pixel`, or of `kind: kl-vae` without `coarse` and `missing`"
            )
        roles = {group.role for group in run.band_groups.values()}
        may_be_absent = not set(run.conditions) <= {"view"} or "condition" in roles
        if may_be_absent and not run.label_dropout:
            yield f"{key}.run {self.run} has conditions, which may be absent in scenes: train it with `label_dropout` above 0"
        is_labeled = tiles.clusters is not None or (self.dataset != run.dataset and not tiles.one_class)
        if is_labeled and not run.label_dropout:
            yield (
                f"{key}.dataset {self.dataset} has other labels than the run {self.run}, which requires a label: train it with "
                "`label_dropout` above 0"
            )
        bands = tiles.band_names
        listed = (*self.coarse, *self.missing, *self.through_clouds)
        if bands is not None and (unknown := [band for band in listed if band not in bands]):
            yield f"{key} has {', '.join(unknown)}: the tiles of runs.{self.run} have {', '.join(bands)}"
        if hasattr(scenes.source, "resampling"):
            yield from scenes.source.coarse_faults(key, self.dataset, self.coarse, is_hidden=self.hide is not None)
        if self.solver(predict).is_flow != (predict == "flow"):
            yield (
                f"{key}.sampler {self.sampler} does not fit objective.prediction_type of runs.{self.run}, which is {predict}: "
                "leave it out"
            )
        if self.block_size < 2 * tiles.tiles.size:
            yield f"{key}.block_size {self.block_size} is less than two tiles: set at least {2 * tiles.tiles.size}"
        if bands is None:
            return
        if set(bands) <= set(self.missing):
            yield f"{key}.missing lists every band, so no pixel is observed: leave a band out"
        present = scenes.band_names or bands
        if absent := [band for band in bands if band not in present and band not in self.missing]:
            yield (
                f"{key}: the scenes of datasets.{self.dataset} lack {', '.join(absent)} of the tiles of runs.{self.run}: list "
                "them in `missing`"
            )
