"""The features stage: batches of images in, feature shards and statistics out, going on where an earlier run stopped.

Legend: n, N batch, H height, W width, d features.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.copies import Rows, evenly
from dithc.evaluate.extractor import Extractor, require_images
from dithc.evaluate.shards import INDEX_FILE, STATISTICS_FILE, Plan, blocks, fault, write_index, write_shard
from dithc.evaluate.statistics import Statistics
from dithc.evaluate.turned import TURNS, has_turned, remove_turned, write_turned
from dithc.latents import view_of
from dithc.log import logger, problem, progress
from dithc.runs import outcome

log = logger(__name__)


def extract(
    batches: Iterable[NDArray[np.uint8]],
    extractor: Extractor,
    out_folder: Path,
    *,
    total: int,
    batch: int = 64,
    shard_size: int = 4096,
    set_hash: str,
    stretch: str = "",
    turned: Rows | None = None,
    images_of: Callable[[Rows], NDArray[np.uint8]] | None = None,
) -> outcome.Features:
    """Extracts the features of a set of images into shards and statistics.

    A shard that an earlier run finished, and that still has the right hash, extractor, resize and set, is used again; its
    images are passed over, and where every shard is there `batches` is not touched. Images go through the network in the same
    groups in both cases, so that a run that was interrupted gives the same bytes.

    Args:
        batches: uint8 RGB (n, 3, H, W), n free, in the fixed order of the set, `total` images in all.
        extractor: the network.
        out_folder: gets `shard-00000.npy` float32 (n, d), their sidecars, `stats.npz` and, last, `features.json`.
        total: number of images in the set.
        batch: images per call of the network.
        shard_size: images per shard.
        set_hash: hash of the set of images; another one makes every shard stale.
        stretch: name or hash of the fixed display stretch to uint8; two sets with different ones are not compared.
        turned: numbers, which rise, of images of which at most 2,048, taken evenly, are extracted in the other orientations too
            (`turned.npy`), for the search of copies; None or empty for none.
        images_of: gives these images by number.

    Returns:
        Numbers for a manifest.

    Raises:
        UserError: fewer than two images, wrong images, or another number of images than `total`.
    """
    if total < 2 or batch < 1 or shard_size < 1:
        raise problem(
            "features cannot be extracted",
            got=f"{total} images, batch {batch}, shard_size {shard_size}",
            expected="at least two images, batch and shard_size at least 1",
            remedy="use more images",
        )
    start = time.monotonic()
    plan = Plan(
        folder=out_folder,
        total=total,
        shard_size=shard_size,
        num_features=extractor.num_features,
        origin=extractor.origin(set_hash=set_hash, stretch=stretch),
    )
    out_folder.mkdir(parents=True, exist_ok=True)
    for path in out_folder.glob(".*.tmp.*"):
        log.info(f"removing {path}: a run was killed while it wrote it")
        path.unlink()
    wanted = _wanted_shards(plan)
    if wanted:
        (out_folder / INDEX_FILE).unlink(missing_ok=True)
        _extract_shards(batches, extractor, plan, wanted=wanted, batch=batch)
    _remove_stale_shards(plan)
    statistics = Statistics(plan.num_features, origin=plan.origin)
    for block in blocks(plan):
        statistics.update(block)
    statistics.save(out_folder / STATISTICS_FILE)
    num_turned = _extract_turned(extractor, plan, rows=turned, images_of=images_of, batch=batch)
    write_index(plan)
    seconds = time.monotonic() - start
    extracted = sum(plan.rows(shard) for shard in wanted)
    log.info(
        f"features of {total} images in {out_folder}: {extracted} extracted, {total - extracted} from earlier runs"
    )
    return {
        "n": total,
        "extracted": extracted,
        "reused": total - extracted,
        "shards": plan.num_shards,
        "turned": num_turned,
        "num_features": plan.num_features,
        "extractor": extractor.name,
        "kind": extractor.kind,
        "sha256": extractor.sha256,
        "resize": extractor.resize,
        "comparable": extractor.comparable,
        "note": extractor.note,
        "set_hash": set_hash,
        "stretch": stretch,
        "seconds": round(seconds, 3),
        "images_per_second": round(extracted / seconds, 3) if extracted else None,
    }


def _wanted_shards(plan: Plan) -> set[int]:
    """The shards to extract; each one that lies there but cannot be used is logged with the reason."""
    wanted = set()
    for shard in range(plan.num_shards):
        reason = fault(plan, shard)
        if reason is None:
            continue
        wanted.add(shard)
        if plan.array(shard).exists():
            log.warning(f"{plan.array(shard)} is extracted again: {reason}")
    return wanted


def _extract_shards(
    batches: Iterable[NDArray[np.uint8]], extractor: Extractor, plan: Plan, *, wanted: set[int], batch: int
) -> None:
    """Runs the network over the images of the wanted shards, writing each shard when its last image is done."""
    features: list[NDArray[np.float32]] = []
    images_wanted = sum(plan.rows(shard) for shard in wanted)
    with progress(total=images_wanted, label=f"features {extractor.kind}", unit="image") as bar:
        for shard, images in _groups(batches, plan, batch=batch):
            if shard not in wanted:
                continue
            features.append(extractor(images))
            bar.update(len(images))
            if sum(map(len, features)) == plan.rows(shard):
                write_shard(plan, shard, np.concatenate(features))
                features.clear()


def _extract_turned(
    extractor: Extractor,
    plan: Plan,
    *,
    rows: Rows | None,
    images_of: Callable[[Rows], NDArray[np.uint8]] | None,
    batch: int,
) -> int:
    """Extracts some images in the other orientations; returns how many."""
    if rows is None or images_of is None or not len(rows):
        remove_turned(plan.folder)
        return 0
    chosen = evenly(rows)
    if has_turned(plan.folder, origin=plan.origin, rows=chosen):
        return len(chosen)
    features = np.empty((TURNS, len(chosen), plan.num_features), np.float32)
    with progress(total=len(chosen), label=f"turned features {extractor.kind}", unit="image") as bar:
        for first in range(0, len(chosen), batch):
            images = images_of(chosen[first : first + batch])
            for turn in range(TURNS):
                features[turn, first : first + batch] = extractor(view_of(images, turn + 1))
            bar.update(len(images))
    write_turned(plan.folder, origin=plan.origin, rows=chosen, features=features)
    return len(chosen)


def _groups(batches: Iterable[NDArray[np.uint8]], plan: Plan, *, batch: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Regroups images into (shard, at most `batch` images), never across the border of a shard.

    Raises:
        UserError: the batches hold another number of images than the plan.
    """
    held: list[NDArray[np.uint8]] = []
    seen = count = 0  # images handed in so far; images in `held`
    for images in batches:
        require_images(images)
        position = 0
        while position < len(images):
            if seen == plan.total:
                raise _wrong_total(plan, f"more than {plan.total}")
            shard, inside = divmod(seen, plan.shard_size)
            part = images[position : position + min(batch - count, plan.rows(shard) - inside)]
            held.append(part)
            seen, count, position = seen + len(part), count + len(part), position + len(part)
            if count == batch or inside + len(part) == plan.rows(shard):
                yield shard, np.concatenate(held)
                held, count = [], 0
    if seen < plan.total:
        raise _wrong_total(plan, seen)


def _wrong_total(plan: Plan, found: object) -> ValueError:
    return problem(
        f"the set of images for {plan.folder} has another size than declared",
        got=f"{found} images",
        expected=f"{plan.total} images",
        remedy="count the images again; a shard of samples may be missing",
    )


def _remove_stale_shards(plan: Plan) -> None:
    """Removes shards beyond the last one, left by an earlier run with more images or smaller shards."""
    used = {plan.array(shard).name for shard in range(plan.num_shards)}
    for array in sorted(plan.folder.glob("shard-*.npy")):
        if array.name not in used:
            log.info(f"{array} belongs to an earlier, larger set: removed")
            array.with_suffix(".json").unlink(missing_ok=True)
            array.unlink()
