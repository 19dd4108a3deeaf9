"""Approximations of a sampling run for the manifest, and the savings of a cache across steps, stored in each sidecar.

Legend: N images of a shard. Saved seconds are rank seconds: the predicted time of the omitted work at the measured
speed of the computed work, less the time of the cache itself.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from dithc.config import training
from dithc.sample.parallel import SamplingGroup

KEY = "cache"  # key of a shard's sidecar


def of_shard(tally: Tensor, team: SamplingGroup) -> dict[str, Any]:
    """Return a shard's sidecar entries from this rank's tally (4) (`BlockCache`); collective over the shard's team."""
    made, whole, seconds, beside = team.members.sum_(tally.float()).tolist()  # integers below 2^24 are exact in fp32
    saved = seconds * (whole - made) / made - beside if made else 0.0
    return {KEY: {"blocks": [round(made), round(whole)], "seconds_saved": round(saved, 3)}}


def numbers(chosen: training.EvaluationConfig, sidecars: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest's values of a cache or of pipefusion from the sidecars of all shards; empty without one."""
    if (staged := chosen.pipefusion) is not None:
        return {"pipefusion": staged.decides, "exact": staged.is_exact(chosen.steps)}
    if chosen.cache is None:
        return {}
    found = [sidecar[KEY] for sidecar in sidecars]
    return {
        "cache": chosen.cache.model_dump(mode="json"),
        "exact": False,
        "blocks": [sum(one["blocks"][place] for one in found) for place in (0, 1)],
        "seconds_saved": round(sum(one["seconds_saved"] for one in found), 3),
    }


def said(numbers: Mapping[str, Any]) -> str:
    made, whole = numbers["blocks"]
    saved, seconds = numbers["seconds_saved"], numbers["seconds"]
    times = (seconds + saved) / seconds if seconds else 1.0
    return (
        f"computed {made:,} of {whole:,} block runs ({made / whole:.0%}), saved {saved:.1f} s of rank time "
        f"({times:.2f} times as fast); images are not exact"
    )
