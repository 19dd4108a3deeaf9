"""Summary of a restoration for its manifest, with warnings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import summaries
from dithc.core.logging import get_logger
from dithc.sample.load_network import describe
from dithc.sample.restoration.job import RestorationJob
from dithc.sample.restoration.outputs import RestoredScene
from dithc.sample.restoration.scenes import Flag
from dithc.sample.restoration.work import BlockSampler

MUCH_CLIPPED = 0.02  # share of the observed values
SOLVER_LIMIT = 1.5  # error of the solver relative to its tolerance
log = get_logger(__name__)


def summarize(
    job: RestorationJob, restored: Sequence[RestoredScene], sampler: BlockSampler, meta: dict[str, Any], *, ranks: int
) -> summaries.RestoreSummary:
    """Return the values of the manifest; warn of much clipping and of a solver that stopped early."""
    settings = job.settings
    records = [one.record(is_verified=True) or {} for one in restored]
    counts = {flag.name.lower(): sum(record["pixels"][flag.name.lower()] for record in records) for flag in Flag}
    by_band = [[record["bands"][key] for record in records] for key in ("observed", "clipped")]
    observed, clipped = np.array(by_band, np.int64).sum(1)
    worst = max(records, key=lambda record: record["solver_error"], default=None)
    error = worst["solver_error"] if worst else 0.0
    if records:
        _warn_of_clipping(observed, clipped, restored[0].scenes.info["bands"])
    if worst and error > SOLVER_LIMIT:
        log.warning(
            f"the solver of the posterior stopped at {error:.1f} times its tolerance in {worst['scene_id']}: restored pixels"
            " agree with the observations less closely; increase `noise` of the restoration"
        )
    return {
        "scenes": len(restored),
        "members": settings.members,
        "blocks": sum(len(one.blocks) for one in restored),
        "bands": list(restored[0].scenes.info["bands"]) if restored else [],
        "units": restored[0].scenes.info["units"] if restored else "",
        "observed": counts["observed"],
        "restored": counts["restored"],
        "outside": counts["outside"],
        "clipped": int(clipped.sum()),
        "solver_error": error,
        "sampler": str(settings.sampler_for(meta["objective"]["prediction_type"])),
        "steps": settings.steps,
        "observation": "pixels" if sampler.factor == 1 else "clear latents, and observed pixels after decoding",
        "clean_blocks": _clean_blocks(restored, sampler),
        "weights_description": describe(job.prior().evaluation, step=meta["step"]),
        "ranks": ranks,
    }


def _clean_blocks(restored: Sequence[RestoredScene], sampler: BlockSampler) -> dict[str, int]:
    """Return the number of sampled blocks in which each group of bands was held clean."""
    blocks = [
        (one.scene, block) for one in restored for block, parts in zip(one.blocks, one.parts, strict=True) if parts
    ]
    levels = [sampler.levels(*block) for block in blocks]
    return {name: sum(one[name] == 0 for one in levels) for name in (levels[0] if levels else ())}


def _warn_of_clipping(observed: npt.NDArray[np.int64], clipped: npt.NDArray[np.int64], bands: Sequence[str]) -> None:
    """Log the share of the observed values that the prior clips, from counts of each band (C), and the worst bands."""
    share, shares = clipped.sum() / max(1, observed.sum()), clipped / np.maximum(1, observed)
    worst = ", ".join(f"{bands[band]} {shares[band]:.1%}" for band in np.argsort(-shares)[:3] if clipped[band])
    text = f"the prior clips {share:.1%} of the observed values to the range of the training tiles"
    if share > MUCH_CLIPPED:
        log.warning(f"{text} ({worst}): train on scenes like these, or set a smaller `tiles.clip_fraction`")
    elif worst:
        log.info(f"{text} ({worst})")
