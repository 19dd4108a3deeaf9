"""Scores of restored scenes against their withheld pixels, with baselines on the same pixels.

Legend: N examples, K members, C bands, h, w part of a scene with its context.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import atomic_write, outputs
from dithc.core.image_quality import seam_ratio
from dithc.core.logging import get_logger, progress
from dithc.data import Tiles
from dithc.diffusion.restoration import conditional_mean
from dithc.engine.comm import Group
from dithc.engine.scheduler import deadline
from dithc.evaluate import restoration
from dithc.evaluate.restoration import Observed, pixel_scores
from dithc.sample.restoration import BlockSampler, ComparedPart, Flag, RestorationJob, RestoredScene

SIDE, CONTEXT = 256, 64  # pixels of a part that is scored at a time, and of its surroundings for baselines
DATES = 8  # most dates of a fill
# Multiple of the noise for the conditional mean. It converges within the iterations, and the error of 20 m bands of
# Sentinel-2 grows by 2%. With the noise itself, it is 40% above the limit after 200 iterations.
NOISE = 5.0
STOP_SECONDS = 120.0  # of the walltime, left for the exit
GROUPS = {
    "nearest neighbor": ("gaps", "coarse"),
    "nearest date": ("gaps",),
    "band mean": ("gaps", "missing"),
    "bilinear": ("coarse",),
    "bicubic": ("coarse",),
}
"""Groups of bands that a method is compared on; other methods are compared on all."""
log = get_logger(__name__)

Values = npt.NDArray[np.floating]
Scores = dict[str, dict[str, Any]]


def score(
    job: RestorationJob, sampler: BlockSampler, scenes: Sequence[RestoredScene], group: Group
) -> dict[str, Scores] | None:
    """Score restored scenes by groups of bands, write the scores to the file of a job and return them.

    Ranks share the parts of scenes. All methods are compared on the same pixels. Pixels without any observation nearby have
    the mean of the train tiles. Returns None if the walltime ends while the first rank trains the regression U-Net.
    """
    net = None
    if job.regression is not None:
        if group.rank == 0:
            outputs.OutputFolder.of(job.out).plan([job.regression])
            net = _regression(job, scenes[0])
        if group.any(group.rank == 0 and net is None):
            return None
        net = net or _regression(job, scenes[0])  # reads the file of the first rank
    has_dates = any(scene.scenes.other_dates(scene.scene) for scene in scenes)
    own = []
    with progress(total=len(scenes), label=f"score {job.name}", unit="scene", quiet=group.rank > 0) as bar:
        for number, scene in enumerate(scenes):
            share = scene.compared(
                side=SIDE, context=CONTEXT, first=(group.rank - number) % group.size, step=group.size
            )
            for part, compared in share:
                own.append((number, part, list(_part_scores(scene, compared, sampler, net, has_dates=has_dates))))
            bar.update(1)
    found: dict[str, dict[str, list[Scores]]] = defaultdict(lambda: defaultdict(list))
    for _, _, parts in sorted(
        chain(*group.gather_objects(own)), key=lambda entry: entry[:2]
    ):  # for any number of ranks
        for pixels, method, scores in parts:
            found[pixels][method].append(scores)
    result: dict[str, Scores] = {}
    for pixels, methods in found.items():
        restored = methods["restored"]
        result[pixels] = {
            name: restoration.pooled(parts, restored=None if name in ("restored", "ensemble") else restored)
            for name, parts in methods.items()
        }
    result = {pixels: one for pixels, one in result.items() if one["restored"]["pixels"]}
    if group.rank == 0:
        atomic_write(job.scores, json.dumps(result, indent=1) + "\n")
    return result


def _part_scores(
    scene: RestoredScene, part: ComparedPart, sampler: BlockSampler, net: Any, *, has_dates: bool
) -> Iterator[tuple[str, str, Scores]]:
    """Yield group, method and scores of the methods in a part of a scene."""
    scenes, inner = scene.scenes, part.inner
    truth = scenes.physical(scene.scene, *part.place)
    low, high = (np.array(ends) for ends in scenes.scaling.ends(list(range(len(truth)))))  # (C,)
    seen = Observed(
        x=truth, pixels=part.flags == Flag.OBSERVED, gaps=part.gaps, coarse=scenes.coarse, mtf=scenes.settings.mtf
    )
    mean = part.members.mean(axis=0, dtype=np.float64)
    images = {"restored": mean, "member": part.members[0]}
    images |= _baselines(scene, part, seen, sampler, net, has_dates=has_dates)
    images = {name: np.where(part.flags == Flag.OUTSIDE, truth, image) for name, image in images.items()}
    observed, restored = seen.pixels[:, *inner], part.flags == Flag.RESTORED
    pasted = np.where(observed, mean[:, *inner], truth[:, *inner])
    yield "observed", "restored", pixel_scores(pasted, truth[:, *inner], observed, data_range=high - low)
    for group, of_group in scenes.groups.items():
        bands, kind = np.flatnonzero(of_group), group.split()[0]
        where = (restored & part.has_truth)[bands][:, *inner]
        true = truth[bands][:, *inner]
        if not where.any():
            continue
        yield group, "ensemble", restoration.ensemble_scores(part.members[:, bands][:, :, *inner], true, where)
        for name, image in images.items():
            if kind not in GROUPS.get(name, kind):
                continue
            known = np.where(where, image[bands][:, *inner], true)
            scores = pixel_scores(known, true, where, data_range=(high - low)[bands])
            scores["spectrum_db"] = restoration.spectral_distance(known, true)
            scores["seam_ratio"] = _seams(scene, part, np.where(restored[bands], image[bands], np.nan))
            if kind == "coarse":
                factor, deviation = scenes.coarse[bands[0]], scenes.settings.noise * (high - low)[bands]
                scores |= restoration.coarse_scores(seen, factor, image, deviation=deviation, inner=inner)
            yield group, name, scores


def _baselines(
    scene: RestoredScene, part: ComparedPart, seen: Observed, sampler: BlockSampler, net: Any, *, has_dates: bool
) -> dict[str, Values]:
    """Return the images (C, h, w) of the baselines by name, in the units of the dataset."""
    scenes, number = scene.scenes, scene.scene
    tile_mean = sampler.covariance.mean.numpy()[:, None, None] * np.ones((1, *seen.gaps.shape))
    observation = sampler.observe(number, part.block)
    normal = tile_mean
    if observation is not None:
        smooth = replace(observation, deviation=NOISE * observation.deviation)
        normal = conditional_mean(smooth, sampler.covariance)[0].numpy()
    scaled = {"conditional mean": normal}
    if net is not None:
        pixels = scenes.scaling.scaled(scenes.stored(number, *part.place)[None])[0]
        scaled["regression"] = net.predict(*_inputs(replace(seen, x=pixels)))
    images = restoration.simple_fills(seen)
    if has_dates:
        others = scenes.other_dates(number)[:DATES]
        dates = [scenes.physical(other, *part.place) for other in others]
        valid = [scenes.flags(other, *part.place) == Flag.OBSERVED for other in others]
        images["nearest date"] = restoration.date_fill(seen.x, seen.pixels, dates, valid)
    images |= {
        name: np.where(seen.pixels, seen.x, scenes.scaling.unscale(image[None])[0]) for name, image in scaled.items()
    }
    mean = scenes.scaling.unscale(tile_mean[None])[0]
    return {name: np.where(np.isnan(image), mean, image) for name, image in images.items()}


def _seams(scene: RestoredScene, part: ComparedPart, image: Values) -> float | None:
    """Return the seam ratio of a part of an image (C, h, w) at the borders of blocks; None without a border."""
    views, borders = [slice(None)], []
    for inner, wide, name in zip(part.inner, part.place, ("rows", "columns"), strict=True):
        first = max(0, inner.start - 1)  # a border may be the first row of the part
        edges = {getattr(block, name).core.start - wide.start - first for block in scene.blocks}
        views.append(slice(first, inner.stop))
        borders.append([edge for edge in sorted(edges) if 0 < edge < inner.stop - first])
    x = image[*views]
    crossed = [x[:, edge - 1] + x[:, edge] for edge in borders[0]] + [
        x[..., edge - 1] + x[..., edge] for edge in borders[1]
    ]
    if not any(np.isfinite(pair).any() for pair in crossed):
        return None
    return seam_ratio(x, *borders, window=(0, 0))


def _inputs(seen: Observed) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Return observed and interpolated values (C, h, w) for the regression, and a mask of them."""
    coarse = seen.interpolated(3)
    return np.where(seen.pixels, seen.x, np.nan_to_num(coarse)), seen.pixels | np.isfinite(coarse)


def _regression(job: RestorationJob, scene: RestoredScene) -> Any:
    """Train the regression U-Net on the train tiles, or continue; None if the walltime is too short."""
    scenes, tiles, seed = scene.scenes, Tiles(job.tiles.parent), job.settings.seed
    assert scenes.hiding is not None
    assert job.settings.hide is not None
    hiding, rows, is_fine = scenes.hiding, tiles.rows("train"), scenes.groups["gaps"][:, None, None]
    shape = (int(tiles.info["size"]),) * 2

    def draw(numbers: range) -> restoration.Examples:
        draws = np.random.default_rng([seed, numbers.start])
        chosen = draws.choice(rows, len(numbers))
        turns, flips = int(draws.integers(4)), draws.integers(2)

        def mirrored(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.rot90(x[..., :: 1 - 2 * flips], turns, (-2, -1))

        truth, clear = mirrored(tiles.scaled(chosen)), mirrored(tiles.clear(chosen))
        parts = []
        for number, image, valid in zip(numbers, truth, clear, strict=True):
            gaps = hiding.window(number, shape, *(slice(0, side) for side in shape)) | ~valid
            seen = Observed(x=image, pixels=~gaps & is_fine, gaps=gaps, coarse=scenes.coarse, mtf=job.settings.mtf)
            parts.append((*_inputs(seen), valid & ~seen.pixels))
        x, given, compared = (np.stack(part) for part in zip(*parts, strict=True))
        return restoration.Examples(x=x, given=given, truth=truth, compared=compared)

    def is_stopped() -> bool:
        left = deadline.seconds_left()
        return left is not None and left < STOP_SECONDS

    minutes = job.settings.hide.regression_minutes
    log.info(f"regression U-Net: up to {minutes:g} min of training on {len(rows)} tiles")
    return restoration.train_regression(
        draw, len(is_fine), seed=seed, state=job.regression, seconds=60 * minutes, is_stopped=is_stopped
    )
