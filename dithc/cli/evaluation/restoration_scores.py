"""Scores of restored scenes against their withheld pixels, with simple baselines on the same pixels.

Legend: K members, C bands, h, w part of a scene.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dithc.core.artifacts import atomic_write
from dithc.core.image_quality import block_mean
from dithc.evaluate.restoration import baselines, ensemble_scores, pixel_scores, pooled
from dithc.sample.restoration import ComparedPart, RestoredScene

SIDE, CONTEXT = 256, 64  # pixels of a part that is scored at a time, and of its surroundings for fills

Values = npt.NDArray[np.float32]


def score(scenes: Sequence[RestoredScene], path: Path) -> dict[str, Any]:
    """Score restored scenes by groups of bands (gaps, coarse, missing), write the scores to a file and return them.

    All methods are compared on the same pixels, those that every fill provides. Other pixels have the truth.
    """
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for scene in scenes:
        ranges = np.subtract(*scene.scenes.scaling.ends(list(range(scene.shape[0])))[::-1])  # (C,)
        for part in scene.compared(side=SIDE, context=CONTEXT):
            images = {"restored": part.members.mean(axis=0, dtype=np.float64), **dict(_fills(part))}
            for group, bands in scene.scenes.groups.items():
                where = part.compared & bands[:, None, None]
                if group != "missing":  # which no fill provides
                    where &= np.all([np.isfinite(image) for image in images.values()], axis=0)
                found[group]["ensemble"].append(ensemble_scores(part.members, part.truth, where))
                for name, image in images.items():
                    if np.isfinite(image[where]).all():
                        known = np.where(where, image, part.truth)
                        found[group][name].append(pixel_scores(known, part.truth, where, data_range=ranges))
    scores = {group: {name: pooled(parts) for name, parts in of_group.items()} for group, of_group in found.items()}
    scores = {group: of_group for group, of_group in scores.items() if of_group["restored"]["pixels"]}
    atomic_write(path, json.dumps(scores, indent=1) + "\n")
    return scores


def _fills(part: ComparedPart) -> Iterator[tuple[str, Values]]:
    """Yield the baselines: fills of gaps, with bilinear interpolation of coarse bands; NaN in missing bands."""
    for name, fill in baselines.FILLS.items():
        filled = fill(part.surroundings, part.observed)  # with the surroundings
        for band, factor in part.coarse.items():
            plain = fill(part.surroundings[[band]], part.clear)[0]
            height, width = (side // factor * factor for side in plain.shape)
            means = block_mean(plain[None, :height, :width], factor)
            filled[band] = np.nan
            filled[band, :height, :width] = baselines.interpolate(means, factor, order=1)[0]
        yield name, filled[:, *part.inner]
