"""The FID stage: two sets of features in, one document of scores out, with all that is needed to judge them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dithc.evaluate.copies import copied_share, evenly, take
from dithc.evaluate.distance import Floor, few_images, fid, floor
from dithc.evaluate.kernel_distance import kid
from dithc.evaluate.shards import STATISTICS_FILE, blocks, read_plan
from dithc.evaluate.statistics import Origin, Statistics
from dithc.evaluate.turned import read_turned
from dithc.log import logger, problem
from dithc.runs import Manifest

log = logger(__name__)

COPIES = ("copies", "copies_held_out", "copies_n")
NOT_TURNED = "copies were not searched: features of turned images are missing; run the features stage again (--turned)"
PUBLISHED_N = 10_000  # images a side in the papers whose figures stand beside ours; FID falls as n grows


def compare(
    path_to_real: Path, path_to_generated: Path, *, seed: int = 0, is_train: NDArray[np.bool_] | None = None
) -> dict[str, object]:
    """Distance of generated images from real ones.

    Args:
        path_to_real: folder that `extract` wrote, or a `stats.npz`; the floor and KID need the folder.
        path_to_generated: likewise; KID needs the folder.
        seed: decides the halves of the floor and the subsets of KID.
        is_train: (n_real,), which of the real tiles are all those that were learnt; None where they are not among them.

    Returns:
        Numbers for a manifest: fid, kid with its 95 % interval (None without folders), floor (None without a real folder) with
        the n of its halves, n_real, n_generated, num_features, extractor, kind, sha256, resize, stretch, comparable, note, set
        hashes and warnings; kid_pulls, of each image on the kernel distance, for a file beside it (None without the interval);
        copies, the share of generated images that are copies of train tiles however turned, copies_held_out, the same of the
        real tiles that were not learnt, which is what chance gives, and copies_n, of how many of each (None without `is_train` or
        such tiles, and with a warning where the features of turned images are missing).

    Raises:
        UserError: a set is missing, incomplete or damaged, or the two were made with different extractors.
    """
    real, blocks_real = _read(path_to_real)
    generated, blocks_generated = _read(path_to_generated)
    score = fid(real, generated)
    kernel = kid(blocks_real, blocks_generated, seed=seed) if blocks_real and blocks_generated else None
    ground = floor(blocks_real, seed=seed) if blocks_real and real.n >= 4 else None
    copies: dict[str, object] = dict.fromkeys(COPIES)
    warnings = _warnings(real, generated, has_floor=ground is not None)
    if is_train is not None and blocks_generated and is_train.sum() >= 2:
        copies |= _copies(
            _Set(path_to_real, real.origin, blocks_real),
            _Set(path_to_generated, generated.origin, blocks_generated),
            is_train=is_train,
        )
        warnings += [NOT_TURNED] if copies["copies"] is None else []
    origin = real.origin
    log.info(_sentence(score, real, generated, ground))
    return {
        "fid": score,
        "kid": kernel.value if kernel else None,
        "kid_interval": kernel.interval if kernel else None,
        "kid_pulls": kernel.pulls if kernel else None,
        "floor": ground.fid if ground else None,
        "floor_n": [ground.n_first, ground.n_second] if ground else None,
        "n_real": real.n,
        "n_generated": generated.n,
        "num_features": real.num_features,
        "extractor": origin.extractor,
        "kind": origin.kind,
        "sha256": origin.sha256,
        "resize": origin.resize,
        "stretch": origin.stretch or generated.origin.stretch,
        "comparable": origin.comparable,
        "note": origin.note,
        "set_hash_real": origin.set_hash,
        "set_hash_generated": generated.origin.set_hash,
        "seed": seed,
        "warnings": warnings,
        **copies,
    }


class _Set(NamedTuple):
    """A folder of features, of what they are, and its shards."""

    folder: Path
    origin: Origin
    blocks: Sequence[NDArray[np.float32]]

    @property
    def size(self) -> int:
        """Number of images."""
        return sum(map(len, self.blocks))


def _copies(real: _Set, generated: _Set, *, is_train: NDArray[np.bool_]) -> dict[str, object]:
    """The shares of copies, with how many images they are of; nothing where features of turned images are missing."""
    if len(is_train) != real.size:
        raise problem(
            "the real features are not of these tiles",
            got=f"features of {real.size} tiles",
            expected=f"{len(is_train)}, those of the split",
            remedy="run the features stage again",
        )
    queries = [(generated, evenly(np.arange(generated.size)))]
    if not all(is_train):
        queries.append((real, evenly(np.flatnonzero(~is_train))))
    shares = []
    for one, rows in queries:
        turned = read_turned(one.folder, origin=one.origin, rows=rows)
        if turned is None:
            return {}
        shares.append(copied_share([take(one.blocks, rows), *turned], real.blocks, is_train))
    share, chance = (*shares, None)[:2]
    return dict(zip(COPIES, (share, chance, [len(rows) for _, rows in queries]), strict=True))


def _read(path: Path) -> tuple[Statistics, Sequence[NDArray[np.float32]]]:
    """Statistics and, from a folder, the verified features themselves."""
    if path.is_dir():
        plan = read_plan(path)
        statistics = Statistics.load(Manifest.whole(path / STATISTICS_FILE))
        if statistics.origin != plan.origin or statistics.n != plan.total:
            raise problem(
                f"{path / STATISTICS_FILE} does not belong to the features beside it",
                got=f"n = {statistics.n}, set {statistics.origin.set_hash!r}",
                expected=f"n = {plan.total}, set {plan.origin.set_hash!r}",
                remedy="run the features stage again",
            )
        return statistics, blocks(plan)
    if not path.exists():
        raise problem(
            "features to compare are missing",
            got=f"{path} (no such file or folder)",
            expected="a folder that the features stage wrote, or its stats.npz",
            remedy="run the features stage first",
        )
    return Statistics.load(path), []


def _warnings(real: Statistics, generated: Statistics, *, has_floor: bool) -> list[str]:
    """What a reader must know before quoting the score."""
    texts = few_images(real, generated)
    if not real.origin.comparable:
        texts.append(real.origin.note or "the extractor is unknown: not comparable with published FID")
    elif min(real.n, generated.n) < PUBLISHED_N:
        texts.append(f"fewer than {PUBLISHED_N} images on a side: the score is higher than one at that n would be")
    if real.origin.set_hash and real.origin.set_hash == generated.origin.set_hash:
        texts.append("real and generated images are the same set")
    if not (real.origin.stretch and generated.origin.stretch):
        texts.append("the display stretch is not recorded on both sides: make sure that it was the same")
    if not has_floor:
        texts.append(
            "no real-half against real-half floor: it needs the folder of real features, not its statistics alone"
        )
    return texts


def _sentence(score: float, real: Statistics, generated: Statistics, ground: Floor | None) -> str:
    under = f"floor {ground.fid:.4g} ({ground.n_first} against {ground.n_second} real)" if ground else "no floor"
    origin = real.origin
    return (
        f"FID {score:.6g}: {real.n} real, {generated.n} generated, {under}; {origin.kind} sha256 {origin.sha256[:12]}, "
        f"resize {origin.resize}"
    )
