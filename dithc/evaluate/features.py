"""The features stage: feature shards and statistics of a set of images, resuming an interrupted run.

Ranks share the images of a shard; rank 0 writes it. Groups of images do not depend on the number of ranks, so that
features are identical.

Legend: n images, d features.
"""

import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import atomic_write, outputs, summaries
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import get_logger, progress, user_error
from dithc.engine.comm import Group
from dithc.evaluate import detectability
from dithc.evaluate.extractors import Extractor
from dithc.evaluate.image_set import ImageSet, share
from dithc.evaluate.memorization import thumbnails
from dithc.evaluate.shards import (
    INDEX_FILE,
    STATISTICS_FILE,
    ShardPlan,
    blocks,
    clipped_share,
    fault,
    write_index,
    write_shard,
)
from dithc.evaluate.statistics import Statistics

IDS_FILE = "images.json"  # the identity of each image in the order of the features
log = get_logger(__name__)
SINGLE_RANK = Group()


def extract_features(
    images: ImageSet,
    extractor: Extractor,
    out_folder: Path,
    *,
    group: Group = SINGLE_RANK,
    batch: int = 64,
    shard_size: int = 4096,
) -> summaries.FeaturesSummary:
    """Extract the features of a set of images into shards and statistics; return values for a manifest on every rank.

    A finished shard with the same hash, extractor, resize and set is reused without reading its images. Images pass the
    network in fixed groups, so that interruptions and several ranks do not change the bytes.

    Args:
        out_folder: Receives `shard-00000.npy` float32 (n, d), `thumbnails-00000.npy`, `structure-00000.npy`, sidecars,
            `stats.npz`, `images.json`, and last `features.json`.

    Raises:
        UserError: There are fewer than two images, or images are invalid.
    """
    if images.total < 2 or batch < 1 or shard_size < 1:
        raise user_error(
            "features cannot be extracted",
            got=f"{images.total} images, batch {batch}, shard_size {shard_size}",
            expected="at least two images, batch and shard_size at least 1",
            fix="use more images",
        )
    start = time.monotonic()
    plan = ShardPlan(
        folder=out_folder,
        total=images.total,
        shard_size=shard_size,
        num_features=extractor.num_features,
        origin=extractor.origin(set_hash=images.set_hash, rendering_digest=images.rendering_digest),
    )
    missing = group.broadcast_object(_plan_shards(plan) if group.rank == 0 else None)
    _extract_shards(images, extractor, plan, shards=missing, batch=batch, group=group)
    if group.rank == 0:
        _finish_folder(images, plan)
    group.barrier()
    seconds = time.monotonic() - start
    extracted = sum(plan.rows(shard) for shard in missing)
    log.info(
        f"features of {plan.total} images in {out_folder}: {extracted} extracted, {plan.total - extracted} from earlier runs"
    )
    return {
        "n": plan.total,
        "extracted": extracted,
        "reused": plan.total - extracted,
        "shards": plan.num_shards,
        "clipped_fraction": clipped_share(plan),
        "ranks": group.size,
        "num_features": plan.num_features,
        **asdict(plan.origin),  # type: ignore[typeddict-item]
        "seconds": round(seconds, 3),
        "images_per_second": round(extracted / seconds, 3) if extracted else None,
    }


def _plan_shards(plan: ShardPlan) -> list[int]:
    """List the files in the marker of the folder and return the shards to extract; log why a shard is not reused."""
    shards = range(plan.num_shards)
    names = (INDEX_FILE, STATISTICS_FILE, IDS_FILE)
    files = [*(path for shard in shards for path in plan.files(shard)), *(plan.folder / name for name in names)]
    outputs.OutputFolder(plan.folder).plan(files)
    missing = []
    for shard in shards:
        reason = fault(plan, shard)
        if reason is None:
            continue
        missing.append(shard)
        if plan.array(shard).exists():
            log.warning(f"extracting {plan.array(shard)} again: {reason}")
    if missing:
        (plan.folder / INDEX_FILE).unlink(missing_ok=True)
    return missing


def _extract_shards(
    images: ImageSet, extractor: Extractor, plan: ShardPlan, *, shards: list[int], batch: int, group: Group
) -> None:
    """Extract the wanted shards; rank 0 writes a shard when all ranks have finished their part."""
    total = sum(plan.rows(shard) for shard in shards)
    label = f"features {extractor.kind}"
    with progress(total=total, label=label, unit="image", quiet=group.rank > 0 or not shards) as bar:
        for shard in shards:
            rows = shard * plan.shard_size + np.arange(plan.rows(shard))
            clipped, rows_of = np.zeros(2, np.int64), list[tuple[NDArray[np.float32], ...]]()
            for part in share(rows, batch=batch, group=group):
                rgb, beyond_range = images.read(part)
                rows_of.append((extractor(rgb), thumbnails(rgb), detectability.describe(rgb)))
                clipped += beyond_range
                bar.update(len(part))
            gathered = group.gather_objects((rows_of, clipped))
            if group.rank == 0:
                arrays = zip(*(part for parts, _ in gathered for part in parts), strict=True)
                counts = np.sum([count for _, count in gathered], axis=0).tolist()
                write_shard(plan, shard, *map(np.concatenate, arrays), clipped=counts)
                bar.update(len(rows) - sum(len(part) for part, *_ in rows_of))


def _finish_folder(images: ImageSet, plan: ShardPlan) -> None:
    """Write the files about all shards; the index, written last, marks the folder as complete."""
    paths = [path for shard in range(plan.num_shards) for path in plan.files(shard)]
    for prefix in ("shard-", "thumbnails-", "structure-"):
        outputs.OutputFolder(plan.folder).prune(paths, prefix=prefix)
    statistics = Statistics(plan.num_features, origin=plan.origin)
    for block in blocks(plan):
        statistics.update(block)
    statistics.save(plan.folder / STATISTICS_FILE)
    identities = {"set_hash": images.set_hash, "images": list(images.ids)}
    atomic_write(plan.folder / IDS_FILE, dump_checksummed(identities))
    write_index(plan)
