"""Types of the `summary` in the manifest of each stage, their validation, and shared constants.

Keys that are not `Required` may be missing. Undeclared keys, which no code reads, are ignored.
"""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from dithc.core.logging import user_error

Count = Annotated[int, Field(ge=0, lt=2**63)]
Interval = Annotated[list[float], Field(min_length=2, max_length=2)]
NORMAL_95 = 1.959964  # half width of the 95% interval of a normal distribution, in standard errors
# Numbers of one execution: times, memory, ranks, and reused results.
PROVENANCE_NUMBERS = frozenset(
    {
        *("seconds", "training_seconds", "seconds_per_step_median", "exposed_seconds_median", "stall_seconds_median"),
        *("overlap_fraction_median", "images_per_second", "peak_rss_bytes", "fast_peak_bytes", "loaded_bytes_median"),
        *("offloaded_bytes_median", "ranks", "threads", "extracted", "reused"),
    }
)
CURVES_FILE = "curves.json"  # spectra, histograms and correlations for the report; next to the manifest of a score
MAX_CHARACTERS = 60  # characters of an invalid value
MESSAGE_PREFIX = "Input should be "  # start of pydantic's messages


class SynthesizeSummary(TypedDict, total=False):
    files: Count
    bytes: Count


class IngestSummary(TypedDict, total=False):
    scenes: Count
    accepted: Count
    rejected: dict[str, Count]
    notes: dict[str, Count]
    left_out: dict[str, Count]
    bands: list[str]


class TilesSummary(TypedDict, total=False):
    accepted: Count
    rejected: dict[str, Count]
    splits: dict[str, Count]
    duplicates: Count
    moved: Count
    compared: Count
    groups: Count
    largest_group: Count
    pixels: Count
    uncovered_pixels: Count
    bands: list[str]
    size: Count


class CodecSummary(TypedDict, total=False):
    steps: Count
    loss: float
    psnr_db: float
    psnr_db_by_band: dict[str, float]
    psnr_linear_db: float
    ssim: float
    spectral_angle_deg: float | None
    ndvi_error: float | None
    parameters: Count


class LatentsSummary(TypedDict, total=False):
    count: Count
    shape: list[Count]
    num_classes: Count
    scale: float
    mean: list[float]
    std: list[float]
    codec: str
    psnr_db: float


class TrainSummary(TypedDict, total=False):
    step: Required[Count]
    initial_loss: float | None
    mean_loss_first_10: float | None
    mean_loss_last_100: float | None
    val_loss: float | None
    seconds_per_step_median: Required[float | None]
    exposed_seconds_median: float | None
    overlap_fraction_median: float | None
    images_per_second: float | None
    training_seconds: float
    peak_rss_bytes: Count | None
    loaded_bytes_median: float | None
    offloaded_bytes_median: float | None
    stall_seconds_median: float | None
    fast_peak_bytes: Count | None
    ranks: Count
    threads: Count
    global_batch_size: Count
    parameters: Count
    dtype: str
    preset: str
    model: dict[str, Any]
    codec: str
    epochs: float
    skipped_steps: list[Count]
    checkpoint_folder: str
    metrics: str
    ema_note: str


class SampleSummary(TypedDict, total=False):
    images: Required[Count]
    seconds: float
    images_per_second: float | None
    network_evaluations: Count
    ranks: Count
    run: str
    checkpoint: str | Count
    weights_description: str
    split: str
    weights: str
    sampler: str
    solver_order: Count | None
    steps: Count
    guidance_scale: float
    guidance_channels: str
    guidance_interval: Interval | None
    guidance_reference: int | None
    seed: Count
    step: Count | None
    dtype: str
    labels: str
    rendering_digest: Required[str]
    codec: str
    shape: list[Count]
    image_size: Count
    windows: dict[str, float | bool]
    seam_ratio: float


class RestoreSummary(TypedDict, total=False):
    scenes: Required[Count]
    members: Required[Count]
    blocks: Count
    bands: list[str]
    units: str
    observed: Count
    restored: Count
    outside: Count
    clipped: Count
    solver_error: float
    sampler: str
    steps: Count
    observation: str
    clean_blocks: dict[str, Count]  # in which a group of bands was held clean
    weights_description: str
    seconds: float
    ranks: Count
    scores: dict[str, Any]


class ExtractorSummary(TypedDict, total=False):
    path: str
    sha256: str
    classes: list[int]
    images: Count
    steps: Count
    seed: Count
    loss: float


class _Compared(TypedDict, total=False):
    """Extractor of features, common to features and scores."""

    num_features: Count
    extractor: Required[str]
    kind: str
    sha256: Required[str]
    resize: Required[str]
    comparable_to_published: Required[bool]
    note: str
    rendering_digest: str


class FeaturesSummary(_Compared, total=False):
    n: Count
    extracted: Count
    reused: Count
    shards: Count
    clipped_fraction: float | None
    ranks: Count
    set_hash: str
    seconds: float
    images_per_second: float | None


class FidSummary(_Compared, total=False):
    fid: Required[float]
    kid: float | None
    kid_interval: Interval | None
    floor: float | None
    floor_n: list[Count] | None
    n_real: Required[Count]
    n_generated: Required[Count]
    set_hash_real: str
    seed: Count
    rendering: dict[str, Any]
    warnings: list[str]
    detectability: dict[str, dict[str, Any]] | None
    memorized_fraction: float | None
    memorized_fraction_val: float | None
    floor_at_n: float | None
    clipped_real: float | None
    clipped_generated: float | None
    precision: float | None
    recall: float | None
    triplets: dict[str, dict[str, Any]]
    pixels: dict[str, Any]


SUMMARY_TYPES: dict[str, type] = {
    "synthesize": SynthesizeSummary,
    "ingest": IngestSummary,
    "tiles": TilesSummary,
    "codec": CodecSummary,
    "latents": LatentsSummary,
    "train": TrainSummary,
    "sample": SampleSummary,
    "restore": RestoreSummary,
    "extractor": ExtractorSummary,
    "features": FeaturesSummary,
    "fid": FidSummary,
}


@cache
def _adapter(stage: str) -> TypeAdapter[Any]:
    return TypeAdapter(with_config(ConfigDict(strict=True, allow_inf_nan=False))(SUMMARY_TYPES[stage]))


def check(numbers: object, *, stage: str, path: Path) -> None:
    """Reject numbers that the stage cannot have written, as in a document that another program wrote.

    Numbers of undeclared stages are not checked. The UserError names file and key of a missing or wrong number.
    """
    if stage not in SUMMARY_TYPES:
        return
    try:
        _adapter(stage).validate_python(numbers)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False)
        key = ".".join(map(str, ("summary", *first["loc"][:1])))
        faults = [first, *(fault for fault in rest if fault["loc"][:1] == first["loc"][:1])]
        expected = [fault["msg"].removeprefix(MESSAGE_PREFIX) for fault in faults]
        got = json.dumps(first["input"])
        if first["type"] == "missing":
            got, expected = "no such key", ["a key that this stage always writes"]
        raise user_error(
            f"{path}: invalid `{key}` of stage {stage!r}",
            got=got if len(got) <= MAX_CHARACTERS else f"{got[:MAX_CHARACTERS]} ...",
            expected=", or ".join(dict.fromkeys(expected)),
            fix="remove this manifest and rerun its stage (`dithc verify --repair` does both)",
        ) from None
