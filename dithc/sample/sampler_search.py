"""Search of the timesteps and the epsilon scaling that suit a solver with few steps and the user's network.

Legend: N latents or images, S timesteps.
"""

import functools
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import get_logger, progress, user_error
from dithc.diffusion import SAMPLERS, Schedule
from dithc.sample.generate import ImageGenerator
from dithc.sample.job import SamplingJob
from dithc.sample.pipeline import inputs_of, open_images
from dithc.sample.shards import batches

SOLVERS = [name for name, spec in evaluations.SAMPLER_SPECS.items() if spec.orders or spec.is_flow]
MAX_STEPS = 20
SHARES = (0.5, 0.25, 0.125)  # successive strides, relative to the distance of a timestep to its neighbor
SCALINGS, SCALING_TOLERANCE, MAX_TRIALS = (-0.1, 0.2), 0.005, 12
MAX_SWEEPS = 4  # over all timesteps, per stride
log = get_logger(__name__)

Times = tuple[int, ...]
"""Falling training timesteps; thousandths of the time for a flow."""


def search_timesteps(job: SamplingJob, *, latents: int, reference_steps: int) -> dict[str, Any]:
    """Optimize the timesteps of an evaluation's solver until its latents differ least from those of many steps.

    The latents use seeds of the evaluation that are not scored. One half is for the search, the other for validation.
    The search starts at the evaluation's `timesteps`, or at the solver's default spacing.

    Args:
        job: Evaluation with network, guidance, solver and number of steps.
        latents: N of each half.
        reference_steps: Steps of the reference: UniPC of third order, or Heun's method for a flow.

    Returns:
        `timesteps`, settings of the search, and mean absolute differences from the reference (in units of scaled latents):
        `searched` on the first half, `unseen` on the second; `before` with the default spacing, `after` with `timesteps`.

    Raises:
        UserError: The sampler draws noise, has too many steps, or more than half of the reference's.
    """
    start = time.monotonic()
    config = job.evaluation
    if (
        config.checkpoint == "codec"
        or str(config.sampler) not in SOLVERS
        or config.num_times < 2
        or config.steps > MAX_STEPS
    ):
        raise user_error(
            f"evaluation {job.name} has no timesteps to search",
            got=f"{config.sampler} in {config.steps} steps, at {config.checkpoint}",
            expected=f"{' or '.join(SOLVERS)} in 2 to {MAX_STEPS} steps (heun: 3 or more), with a network",
            fix="change `sampler`, `steps` or `checkpoint` of the evaluation",
        )
    if reference_steps < 2 * config.steps:
        fix = "take 200"
        raise user_error("steps of the reference", got=reference_steps, expected=f"{2 * config.steps} or more", fix=fix)
    inputs = inputs_of(job)
    images, _ = open_images(job, tiles_digest=inputs[str(job.tiles)])
    error, validation_error = (
        _latent_error(images, indices, reference_steps=reference_steps) for indices in _halves(job, latents)
    )
    spacing, minimum = _default_spacing(config)
    before = error(spacing)
    times, after = descend(error, tuple(config.timesteps or spacing), least=minimum, report=log.info)
    unseen = {"before": validation_error(spacing), "after": validation_error(times)}
    result = {"timesteps": list(times), "searched": {"before": before, "after": after}, "unseen": unseen}
    if unseen["after"] >= unseen["before"]:
        log.warning("these timesteps do not improve unseen latents: search on more latents")
    settings = {"evaluation": job.name, "spec": job.spec, "inputs": inputs}
    sizes = {"latents": latents, "reference_steps": reference_steps, "trials": error.cache_info().misses}
    return {**result, **settings, **sizes, "seconds": round(time.monotonic() - start, 3)}


def _halves(job: SamplingJob, count: int) -> tuple[range, range]:
    """Return the first `count` images that are not scored, for the search, and the next ones, for validation."""
    first = job.evaluation.num_images
    return range(first, first + count), range(first + count, first + 2 * count)


def _latent_error(
    images: ImageGenerator, indices: Sequence[int], *, reference_steps: int
) -> "functools._lru_cache_wrapper[float]":
    """Return the mean absolute difference of latents from their reference, as a cached function of the timesteps."""

    def latents(**settings: Any) -> Tensor:
        changed = images.changed(**settings)
        parts = batches(indices, images.evaluation.batch_size)
        return torch.cat([changed.latents(part) for part in parts])  # (N, Z, h, w)

    log.info(f"computing {len(indices)} reference latents in {reference_steps} steps")
    is_flow = images.evaluation.solver.is_flow
    solver: dict[str, Any] = {"sampler": "heun"} if is_flow else {"sampler": "unipc", "solver_order": 3}
    reference = latents(**solver, steps=reference_steps, timesteps=None)
    return functools.cache(lambda times: float((latents(timesteps=list(times)) - reference).abs().mean()))


def _default_spacing(config: evaluations.EvaluationConfig) -> tuple[Times, int]:
    """Return the timesteps of a solver without `timesteps`, and the least last one; equal intervals for a flow."""
    assert isinstance(config.sampler, str), "installed samplers are not searched"
    if config.solver.is_flow:
        count = config.num_times
        return tuple(round(evaluations.FLOW_START * (count - index) / count) for index in range(count)), 1
    spacing = SAMPLERS[config.sampler].spacing
    return tuple(reversed(Schedule.linear().respaced(config.steps, spacing=spacing).timesteps.tolist())), 0


def descend(
    error: Callable[[Times], float], times: Times, *, least: int = 0, report: Callable[[str], None] = lambda _: None
) -> tuple[Times, float]:
    """Move single timesteps towards a neighbor while that lowers the error; return the best times and their error.

    Strides fall. First, the other timesteps follow in proportion, because multistep solvers need strides of similar
    length; then each moves alone. The first stays, because the path begins in noise. The last may move to `least`.
    `report` receives each sweep.
    """
    lowest = error(times)
    for share, others_follow in ((share, follow) for follow in (True, False) for share in SHARES):
        for _ in range(MAX_SWEEPS):
            before = lowest
            for index in range(1, len(times)):
                for candidate in _moved_times(times, index, share, minimum=least, others_follow=others_follow):
                    if (candidate_error := error(candidate)) < lowest:
                        times, lowest = candidate, candidate_error
            report(f"stride {share:g} of the distance: difference {before:.4g} -> {lowest:.4g}, {list(times)}")
            if lowest == before:
                break
    return times, lowest


def _moved_times(times: Times, index: int, share: float, *, minimum: int, others_follow: bool) -> list[Times]:
    """Return timesteps with `index` moved towards either neighbor, if integer timesteps allow it."""
    current, first = times[index], times[0]
    result = []
    for neighbor in (times[index - 1], times[index + 1] if index + 1 < len(times) else minimum - 1):
        moved = current + int(share * (neighbor - current))
        before, after = times[:index], times[index + 1 :]
        if others_follow:
            before = tuple(round(first + (time - first) * (moved - first) / (current - first)) for time in before)
            after = tuple(round(time * moved / current) for time in after)
        candidate = (*before, moved, *after)
        if moved != current and all(later > earlier for later, earlier in pairwise((*candidate, minimum - 1))):
            result.append(candidate)
    return result


def search_epsilon_scaling(
    job: SamplingJob, *, score: Callable[[npt.NDArray[np.uint8]], float], images: int
) -> dict[str, Any]:
    """Search the epsilon scaling of an evaluation by a score of its images, with its other settings.

    The images use seeds of the evaluation that are not scored. One half is for the search, always with the same noise,
    the other for validation.

    Args:
        job: Evaluation with network, guidance, solver and steps; its `epsilon_scaling` is ignored.
        score: Score of displayed images, uint8 (N, 3, H, W); lower is better.
        images: N of each half.

    Returns:
        `epsilon_scaling` (0 without an improvement), settings of the search, and scores: `searched` on the first half,
        `unseen` on the second; `before` at 0, `after` with it.
    """
    start = time.monotonic()
    config = job.evaluation
    if config.checkpoint == "codec":
        raise user_error(
            f"evaluation {job.name} has no noise to scale",
            got="checkpoint: codec",
            expected="an evaluation that samples a network",
            fix="select another evaluation",
        )
    inputs = inputs_of(job)
    opened, _ = open_images(job, tiles_digest=inputs[str(job.tiles)])
    first, second = _halves(job, images)

    def score_at(scaling: float, indices: Sequence[int]) -> float:
        changed, parts = opened.changed(epsilon_scaling=scaling), []
        with progress(total=len(indices), label=f"epsilon scaling {scaling:.3f}", unit="image") as bar:
            for part in batches(indices, config.batch_size):
                parts.append(changed.codec.to_rgb(changed.images(part)))
                bar.update(len(part))
        value = score(np.concatenate(parts))  # input uint8 (N, 3, H, W)
        log.info(f"epsilon scaling {scaling:.3f}: {value:.6g}")
        return value

    from scipy.optimize import minimize_scalar

    before = score_at(0.0, first)
    options = {"xatol": SCALING_TOLERANCE, "maxiter": MAX_TRIALS}
    best = minimize_scalar(lambda x: score_at(float(x), first), bounds=SCALINGS, options=options)
    scaling = round(float(best.x), 3) if best.fun < before else 0.0
    unseen = {"before": score_at(0.0, second), "after": score_at(scaling, second)}
    if unseen["after"] > unseen["before"]:
        log.warning("this scaling does not improve unseen images: search on more images")
    return {
        "epsilon_scaling": scaling,
        "searched": {"before": before, "after": min(before, float(best.fun))},
        "unseen": unseen,
        "evaluation": job.name,
        "spec": job.spec,
        "inputs": inputs,
        "images": images,
        "trials": int(best.nfev) + 1,
        "seconds": round(time.monotonic() - start, 3),
    }
