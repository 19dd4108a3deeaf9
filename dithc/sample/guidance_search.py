"""Search of the guidance scale that suits the user's network.

Legend: N images.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.logging import get_logger, progress, user_error
from dithc.sample.job import SamplingJob
from dithc.sample.pipeline import inputs_of, open_images
from dithc.sample.shards import batches

BOUNDS, TOLERANCE, MAX_TRIALS = (1.01, 4.0), 0.05, 12
PLAIN: dict[str, Any] = {"guidance_scale": 1.0, "guidance_reference": None, "guidance_interval": None}
log = get_logger(__name__)


def search_guidance_scale(
    job: SamplingJob, *, score: Callable[[npt.NDArray[np.uint8]], float], images: int
) -> dict[str, Any]:
    """Search the guidance scale of an evaluation by a score of its images, with its other settings.

    The images use seeds of the evaluation that are not scored. One half is for the search, always with the same noise,
    the other for validation.

    Args:
        job: Evaluation with network, guidance reference, solver and steps; its `guidance_scale` is ignored.
        score: Score of displayed images, uint8 (N, 3, H, W); lower is better.
        images: N of each half.

    Returns:
        `guidance_scale` (1 without an improvement of unseen images), settings of the search, and scores: `searched` on the
        first half, `unseen` on the second; `before` without guidance, `after` with it.
    """
    start = time.monotonic()
    config = job.evaluation
    if config.checkpoint == "codec":
        raise user_error(
            f"evaluation {job.name} has no guidance",
            got="checkpoint: codec",
            expected="an evaluation that samples a network",
            fix="select another evaluation",
        )
    inputs = inputs_of(job)
    opened, _ = open_images(job, tiles_digest=inputs[str(job.tiles)])
    scored = config.num_images
    first, second = range(scored, scored + images), range(scored + images, scored + 2 * images)

    def score_at(scale: float, indices: Sequence[int]) -> float:
        changed, parts = opened.changed(**(PLAIN if scale == 1.0 else {"guidance_scale": scale})), []
        with progress(total=len(indices), label=f"scale {scale:.2f}", unit="image") as bar:
            for part in batches(indices, config.batch_size):
                parts.append(changed.codec.to_rgb(changed.images(part)))
                bar.update(len(part))
        value = score(np.concatenate(parts))  # input uint8 (N, 3, H, W)
        log.info(f"guidance scale {scale:.2f}: {value:.6g}")
        return value

    from scipy.optimize import minimize_scalar

    before = score_at(1.0, first)
    options = {"xatol": TOLERANCE, "maxiter": MAX_TRIALS}
    best = minimize_scalar(lambda x: score_at(float(x), first), bounds=BOUNDS, options=options)
    scale = round(float(best.x), 2) if best.fun < before else 1.0
    unseen = {"before": score_at(1.0, second), "after": score_at(scale, second)}
    if unseen["after"] > unseen["before"]:
        log.warning(f"guidance of scale {scale} does not improve unseen images: keep 1, or search on more images")
        scale = 1.0
    return {
        "guidance_scale": scale,
        "searched": {"before": before, "after": min(before, float(best.fun))},
        "unseen": unseen,
        "evaluation": job.name,
        "spec": job.spec,
        "inputs": inputs,
        "images": images,
        "trials": int(best.nfev) + 1,
        "seconds": round(time.monotonic() - start, 3),
    }
