"""The FID stage: scores of two sets of features, with the values that qualify them."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import Manifest
from dithc.core.logging import get_logger, user_error
from dithc.evaluate import detectability
from dithc.evaluate.distances import (
    FidFloor,
    fid,
    fid_floor,
    fid_floor_at,
    kid,
    precision_recall,
    small_sample_warning,
)
from dithc.evaluate.memorization import Blocks, copied_share, evenly, take
from dithc.evaluate.pixels import multispectral, pixel_file
from dithc.evaluate.shards import (
    STATISTICS_FILE,
    blocks,
    clipped_share,
    read_plan,
    structure_blocks,
    thumbnail_blocks,
)
from dithc.evaluate.statistics import FeatureOrigin, Statistics

log = get_logger(__name__)

COPIES = ("memorized_fraction", "memorized_fraction_val", "memorized_n")
ORIGIN_KEYS = ("extractor", "kind", "sha256", "resize", "rendering_digest", "comparable_to_published", "note")
TRIPLET_KEYS = ("fid", "kid", "kid_interval", "floor", "floor_at_n", "clipped_real", "clipped_generated")
MIN_FLOOR_IMAGES = 4  # images; each half needs a covariance
PUBLISHED_N = 10_000  # images per set in the published scores; FID falls as n grows
PIXEL_METRICS = {
    "bands": multispectral.of_bands,
    "indices": multispectral.of_indices,
    "spectra": multispectral.of_spectra,
}
CURVES = ("power", "correlation", "histogram")  # many numbers, for a separate file


class FeatureSet(NamedTuple):
    """A folder of features and its content."""

    folder: Path
    statistics: Statistics
    blocks: Blocks
    thumbnails: Blocks
    structure: Blocks
    clipped: float | None

    @property
    def n(self) -> int:
        return self.statistics.n

    @property
    def origin(self) -> FeatureOrigin:
        return self.statistics.origin


def compare_features(
    path_to_real: Path,
    path_to_generated: Path,
    *,
    seed: int = 0,
    is_train: NDArray[np.bool_] | None = None,
    metrics: Collection[str] = (),
    triplets: Sequence[str] = (),
) -> dict[str, object]:
    """Compute the distance of generated images from real ones.

    Args:
        path_to_real, path_to_generated: Folders of `extract_features`.
        seed: Seed of the halves of the floor and the subsets of KID.
        is_train: (n_real,), true for training tiles; None if the set does not contain all of them.
        metrics: Optional metrics: interval, precision-recall, and the keys of `PIXEL_METRICS`.
        triplets: Folders below both, with features of other bands, compared separately.

    Returns:
        Values for a manifest. kid has a 95% interval, floor the n of its halves, and floor_at_n is the floor at the n of
        the score. memorized_fraction is the share of generated images that copy training tiles in any orientation,
        memorized_fraction_val the same for other real tiles, memorized_n the sample sizes. detectability has the AUC by
        scale. `curves` belong in a separate file. Values without inputs are None.

    Raises:
        UserError: A set is missing, incomplete or damaged, or the extractors differ.
    """
    real, generated = _read_features(path_to_real), _read_features(path_to_generated)
    score = fid(real.statistics, generated.statistics)
    kernel = kid(real.blocks, generated.blocks, seed=seed)
    ground = fid_floor(real.blocks, seed=seed) if real.n >= MIN_FLOOR_IMAGES else None
    copies: dict[str, object] = dict.fromkeys(COPIES)
    warnings = _warnings(real, generated)
    structures = [take(side.structure, evenly(np.arange(side.n))) for side in (generated, real)]
    bands = real.thumbnails[0].shape[1]
    if is_train is not None and is_train.sum() >= 2:
        copies |= _copies(real, generated, is_train=is_train)
    extras = _optional(real, generated, metrics=metrics)
    if triplets:
        extras["triplets"] = {name: _triplet(path_to_real / name, path_to_generated / name, seed) for name in triplets}
    origin, num_features = real.origin, real.statistics.num_features
    log.info(_summary(score, real.statistics, generated.statistics, ground))
    return {
        "fid": score,
        "kid": kernel.value,
        "kid_interval": kernel.interval,
        "floor": ground.fid if ground else None,
        "floor_n": [ground.n_first, ground.n_second] if ground else None,
        "floor_at_n": fid_floor_at(ground, n_real=real.n, n_generated=generated.n, num_features=num_features),
        "clipped_real": real.clipped,
        "clipped_generated": generated.clipped,
        "n_real": real.n,
        "n_generated": generated.n,
        "num_features": num_features,
        **{name: getattr(origin, name) for name in ORIGIN_KEYS},
        "set_hash_real": origin.set_hash,
        "set_hash_generated": generated.origin.set_hash,
        "seed": seed,
        "detectability": detectability.compare(*structures, bands=bands, seed=seed),
        "warnings": warnings,
        **copies,
        **extras,
    }


def _optional(real: FeatureSet, generated: FeatureSet, *, metrics: Collection[str]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    if "precision-recall" in metrics:
        numbers |= precision_recall(real.blocks, generated.blocks)
    if any(name in metrics for name in PIXEL_METRICS):
        pixels = [pixel_file.read(side.folder) for side in (real, generated)]
        distances = {name: compare(*pixels) for name, compare in PIXEL_METRICS.items() if name in metrics}
        numbers["pixels"] = {name: _without_curves(values) for name, values in distances.items()}
        numbers["curves"] = {"band_names": list(pixels[0].bands), **distances}
    return numbers


def _without_curves(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_curves(part) for name, part in value.items() if name not in CURVES}


def _triplet(real: Path, generated: Path, seed: int) -> dict[str, object]:
    """Return the scores of three bands, without the numbers of the complete set."""
    numbers = compare_features(real, generated, seed=seed)
    return {name: numbers[name] for name in TRIPLET_KEYS}


def _copies(real: FeatureSet, generated: FeatureSet, *, is_train: NDArray[np.bool_]) -> dict[str, object]:
    """Return the shares of copies and their sample sizes."""
    if len(is_train) != real.n:
        raise user_error(
            "the real features belong to other tiles",
            got=f"features of {real.n} tiles",
            expected=f"features of the {len(is_train)} tiles of the split",
            fix="rerun the features stage",
        )
    queries = [take(generated.thumbnails, evenly(np.arange(generated.n)))]
    if not all(is_train):
        queries.append(take(real.thumbnails, evenly(np.flatnonzero(~is_train))))
    share, baseline = (*(copied_share(images, real.thumbnails, is_train) for images in queries), None)[:2]
    return dict(zip(COPIES, (share, baseline, [len(images) for images in queries]), strict=True))


def _read_features(path: Path) -> FeatureSet:
    """Read the statistics and the verified features of a folder."""
    plan = read_plan(path)
    statistics = Statistics.load(Manifest.verified(path / STATISTICS_FILE))
    if statistics.origin != plan.origin or statistics.n != plan.total:
        raise user_error(
            f"{path / STATISTICS_FILE} does not belong to the features in its folder",
            got=f"n = {statistics.n}, set {statistics.origin.set_hash!r}",
            expected=f"n = {plan.total}, set {plan.origin.set_hash!r}",
            fix="rerun the features stage",
        )
    return FeatureSet(
        path, statistics, blocks(plan), thumbnail_blocks(plan), structure_blocks(plan), clipped_share(plan)
    )


def _warnings(real: FeatureSet, generated: FeatureSet) -> list[str]:
    """Return the limits of the score that must be stated with it."""
    texts = small_sample_warning(real.statistics, generated.statistics)
    if not real.origin.comparable_to_published:
        texts.append(real.origin.note)
    elif min(real.n, generated.n) < PUBLISHED_N:
        texts.append(f"fewer than {PUBLISHED_N} images in a set: the score is higher than at that n")
    if real.origin.set_hash == generated.origin.set_hash:
        texts.append("real and generated images are the same set")
    if real.n < MIN_FLOOR_IMAGES:
        texts.append(
            f"no floor of real half against real half: it requires {MIN_FLOOR_IMAGES} real images, the set has {real.n}"
        )
    return texts


def _summary(score: float, real: Statistics, generated: Statistics, ground: FidFloor | None) -> str:
    base = f"floor {ground.fid:.4g} ({ground.n_first} against {ground.n_second} real)" if ground else "no floor"
    origin = real.origin
    return (
        f"FID {score:.6g}: {real.n} real, {generated.n} generated, {base}; {origin.kind} sha256 {origin.sha256[:12]}, "
        f"resize {origin.resize}"
    )
