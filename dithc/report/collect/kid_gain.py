"""Fall of KID since the start of a run, with intervals from stored influences."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.config import ExperimentConfig, evaluations
from dithc.core.artifacts import summaries
from dithc.core.integrity import parse_json
from dithc.report.collect.gather import ExperimentResults, StageResult
from dithc.report.records import Gain

SAME = {"run", "sampler", "solver_order", "steps", "epsilon_scaling", "seed"}
SAME |= {"guidance_scale", "guidance_channels", "guidance_interval"}
SAME_NUMBERS = ("set_hash_real", "n_real", "sha256", "resize", "rendering_digest", "seed")


def gain_of(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> Gain | None:
    """Return the fall of KID from the start of the run to an evaluation; None without a comparable start or without influences.

    Both scores share the real tiles, and equal image indices share the noise. The influence of the difference is therefore
    the difference of influences, image by image (a missing image has influence 0). Independent images are treated correctly too.
    """
    config = experiment.evaluations[name]
    if config.checkpoint in ("start", "untrained", "codec"):
        return None
    for checkpoint in ("start", "untrained"):
        for start_name, settings in experiment.evaluations.items():
            if settings.checkpoint == checkpoint and _sampling_settings(settings) == _sampling_settings(config):
                before, after = results.last("fid", start_name), results.last("fid", name)
                if before and after and (gain := _gain(before, after)):
                    return gain
    return None


def _sampling_settings(config: evaluations.EvaluationConfig) -> dict[str, Any]:
    """Return the settings that determine the sampling."""
    return config.model_dump(include=SAME)


def _is_comparable(before: StageResult, after: StageResult) -> bool:
    """Test whether two scores share real tiles, features and noise."""
    return all(before.summary.get(key) == after.summary.get(key) for key in SAME_NUMBERS)


def _gain(before: StageResult, after: StageResult) -> Gain | None:
    if not _is_comparable(before, after):
        return None
    influences = [_influences(result) for result in (before, after)]
    scores = [result.summary.get("kid") for result in (before, after)]
    if influences[0] is None or influences[1] is None or scores[0] is None or scores[1] is None:
        return None
    variance = 0.0
    for first, second in zip(*influences, strict=True):
        longest = max(len(first), len(second))
        padded = [np.pad(influence, (0, longest - len(influence))) for influence in (first, second)]
        variance += float(((padded[0] - padded[1]) ** 2).sum())
    fall, half = scores[0] - scores[1], summaries.NORMAL_95 * float(np.sqrt(variance))
    return Gain(start=before.name, fall=fall, interval=[fall - half, fall + half])


def _influences(result: StageResult) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return influences of real and generated images; None if the stage stored none."""
    if not any(entry["path"] == summaries.INFLUENCES_FILE for entry in result.manifest.files):
        return None
    content = parse_json(result.manifest.verified(result.path.parent / summaries.INFLUENCES_FILE).read_text())
    return np.array(content["real"], np.float64), np.array(content["generated"], np.float64)
