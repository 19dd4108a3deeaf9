"""Content of the report: plain records of numbers and texts from manifests. Images are paths."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dithc.report import scaling_curves

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CodecRecord:
    """The codec and its reconstruction losses."""

    name: str
    kind: str
    train_dataset: str | None = None
    shape: list[int] | None = None
    psnr_db: float | None = None
    psnr_linear_db: float | None = None
    psnr_db_by_band: dict[str, float] = field(default_factory=dict)
    ssim: float | None = None
    spectral_angle_deg: float | None = None
    ndvi_error: float | None = None
    loss: float | None = None
    steps: int | None = None
    parameters: int | None = None
    grid: Path | None = None
    bands: Path | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetRecord:
    """A dataset from scenes to tiles; None and empty if a stage was not run. `rendering` describes its 8-bit RGB."""

    name: str
    title: str
    kind: str
    synthetic: bool
    is_tiled: bool = True  # False for scenes that are only restored
    scenes: int | None = None
    scenes_rejected: dict[str, int] = field(default_factory=dict)
    tiles: int | None = None
    tiles_rejected: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    band_names: list[str] = field(default_factory=list)
    size: int | None = None
    gsd_m: float | None = None
    units: str = ""
    classes: int | None = None
    codec: CodecRecord
    grid: Path | None = None
    cluster_grid: Path | None = None  # image of tiles by cluster
    ranges: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tiles_folder: Path | None = None
    scenes_folder: Path | None = None
    rendering: str = ""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Metrics of a run by ascending step, arrays of one length with NaN for missing values."""

    run: str
    steps: Values
    loss: Values
    images_per_second: Values
    val_loss: Values  # squared error on held-out tiles
    lr: Values
    segments: list[int] = field(default_factory=list)  # last steps of the jobs of the run, without the final one
    resumes: list[int] = field(default_factory=list)  # steps at which the run resumed after an unplanned stop
    ranks: dict[str, Any] = field(default_factory=dict)  # the run's slow.json: times of ranks; empty for one rank


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A training run: initialization, course and final loss.

    `changes` lists differences from a plain DiT. `settings` lists all hyperparameters by dotted key.
    """

    name: str
    dataset: str
    init_from_run: str | None
    preset: str
    changes: dict[str, Any]
    settings: dict[str, str] = field(default_factory=dict)
    dtype: str
    steps_planned: int
    global_batch_size: int
    step: int | None = None
    parameters: int | None = None
    ranks: int | None = None
    threads: int | None = None
    initial_loss: float | None = None
    mean_loss_first_10: float | None = None
    mean_loss_last_100: float | None = None
    val_loss: float | None = None
    seconds: float = 0.0
    seconds_per_step: float | None = None
    images_per_second: float | None = None
    peak_rss_bytes: int | None = None
    weights_note: str = ""
    segments: list[int] = field(default_factory=list)
    resumes: list[int] = field(default_factory=list)
    curve: Curve | None = None

    @property
    def model(self) -> str:
        """Preset of the network, or its size if that differs from the preset."""
        size = [self.changes.get(key) for key in ("hidden_size", "depth", "num_heads")]
        if all(value is None for value in size):
            return self.preset
        family, _, patch = self.preset.partition("-")
        dimensions = zip(("width", "depth", "heads"), size, strict=True)
        parts = [f"{name} {value}" for name, value in dimensions if value is not None]
        return ", ".join([f"{family}, custom size", *parts, f"patch {patch.rpartition('/')[2]}"])


# Number of images below which the bias of FID is as large as the differences of interest. KID is unbiased and comes first.
SMALL = 2000
Measure = Literal["KID", "FID"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Scores of an evaluation; a number is None if it could not be computed."""

    fid: float
    kid: float | None = None
    kid_interval: list[float] | None = None
    floor: float | None = None
    floor_n: list[int] | None = None
    n_real: int
    n_generated: int
    extractor: str
    sha256: str
    resize: str
    kind: str = ""
    comparable_to_published: bool
    note: str = ""
    warnings: list[str] = field(default_factory=list)
    memorized_fraction: float | None = None
    memorized_fraction_val: float | None = None
    floor_at_n: float | None = None
    clipped_real: float | None = None
    clipped_generated: float | None = None
    detectability: dict[str, dict[str, Any]] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return min(self.n_real, self.n_generated)

    def value(self, measure: str) -> float:
        """Return the score by measure; infinite without KID, so that it does not come first."""
        score = self.fid if measure == "FID" else self.kid
        return math.inf if score is None else score


@dataclass(frozen=True, kw_only=True)
class SampleFiles:
    """Manifests of generated images, of their features, and of the features of the real tiles; None if absent."""

    samples: Path
    features: Path | None
    real_features: Path | None


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """Samples of a run and their score; None if a stage was not run."""

    name: str
    run: str
    dataset: str
    checkpoint: Literal["untrained", "start", "final", "codec"] | int
    label: str
    weights: str
    sampler: str
    solver_order: int | None
    steps: int
    guidance_scale: float
    guidance_channels: str
    guidance_interval: list[float] | None
    guidance_reference: int | None
    real_split: str
    images: int | None = None
    images_per_second: float | None = None
    network_evaluations: int | None = None
    score: Score | None = None
    grid: Path | None = None
    curves: dict[str, Any] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    files: SampleFiles | None = None

    @property
    def solver(self) -> str:
        """Description of the sampler."""
        order = f", order {self.solver_order}" if self.solver_order is not None else ""
        return f"{self.sampler} {self.steps}{order}"

    @property
    def guided(self) -> str:
        """Description of the guidance; empty without guidance."""
        if self.guidance_scale == 1.0:
            return ""
        reference = "" if self.guidance_reference is None else f", away from step {self.guidance_reference}"
        interval = ""
        if self.guidance_interval is not None:
            low, high = self.guidance_interval
            interval = f", from {low:g} to {high:g} of the timesteps"
        count = f"; {self.network_evaluations} evaluations" if self.network_evaluations is not None else ""
        return f"guidance {self.guidance_scale}, {self.guidance_channels}{reference}{interval}{count}"


@dataclass(frozen=True, kw_only=True)
class RestorationRecord:
    """A finished restoration: settings, scores by group of bands and method, and folders of its scenes.

    `scores` are empty without `hide`. `coarse` has the factor of each band of a coarser grid.
    """

    name: str
    dataset: str
    prior: str
    settings: dict[str, str]
    members: int
    scenes: int
    coarse: dict[str, int]
    missing: list[str]
    scores: dict[str, dict[str, dict[str, Any]]]
    folders: list[Path]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall time of a stage for one name and dataset."""

    stage: str
    name: str
    dataset: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Provenance of a manifest."""

    stage: str
    name: str
    digest: str
    code: str
    commit: str
    host: str
    written: str
    seconds: float
    path: str


@dataclass(frozen=True, kw_only=True)
class ReportRecords:
    """All content of the report on an experiment.

    Attributes:
        benches: results of `dithc bench KIND --json` by kind, except scaling.
    """

    name: str
    title: str
    written: str
    datasets: list[DatasetRecord]
    runs: list[RunRecord]
    evaluations: list[EvaluationRecord]
    restorations: list[RestorationRecord] = field(default_factory=list)
    timings: list[Timing]
    origins: list[Origin]
    warnings: list[str]
    machine: list[str]
    versions: dict[str, str]
    benches: dict[str, dict[str, Any]] = field(default_factory=dict)
    scaling: list[scaling_curves.ScalingCurve] = field(default_factory=list)
    seed: int = 0  # root seed of the experiment
    config: Path | None = None  # configuration file for commands; None if unknown
    missing: dict[str, list[str]] = field(default_factory=dict)  # expected results that were not run, by stage

    @property
    def measure(self) -> Measure:
        """Primary measure: KID if a set is small and all scores have KID, else FID."""
        scores = [item.score for item in self.evaluations if item.score]
        small = any(result.n < SMALL for result in scores)
        return "KID" if small and all(result.kid is not None for result in scores) else "FID"

    @property
    def seconds(self) -> float:
        return sum(timing.seconds for timing in self.timings)

    def evaluations_of(self, dataset: str) -> list[EvaluationRecord]:
        """Return evaluations on a dataset: untrained, before, during and after training, codec last."""
        order: dict[str | int, float] = {"untrained": -1.0, "start": 0.0, "final": math.inf}
        evaluations = [item for item in self.evaluations if item.dataset == dataset]
        return sorted(
            evaluations,
            key=lambda item: (
                item.checkpoint == "codec",
                item.checkpoint if isinstance(item.checkpoint, int) else order.get(item.checkpoint, 0),
            ),
        )

    def best(self, dataset: str) -> EvaluationRecord | None:
        """Return the best evaluation of samples of a dataset, preferring published features; None without scores."""
        scored = [item for item in self.evaluations_of(dataset) if item.score and item.checkpoint != "codec"]
        return min(scored, key=self.rank, default=None)

    def rank(self, item: EvaluationRecord) -> tuple[bool, float]:
        """Return the sort key of a scored evaluation: published features first, then by the primary measure."""
        return (not item.score.comparable_to_published, item.score.value(self.measure)) if item.score else (True, 0.0)

    def dataset(self, name: str) -> DatasetRecord:
        return next(item for item in self.datasets if item.name == name)

    def chain(self, run: str) -> list[RunRecord]:
        """Return a run and its ancestors, the first ancestor first."""
        last_run = next(item for item in self.runs if item.name == run)
        return [*(self.chain(last_run.init_from_run) if last_run.init_from_run else []), last_run]

    @property
    def last_runs(self) -> list[RunRecord]:
        """Runs that initialize no other run."""
        started = {item.init_from_run for item in self.runs}
        return [item for item in self.runs if item.name not in started]
