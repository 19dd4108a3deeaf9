"""Approximations of a sampling run for the manifest, and the savings of a cache across steps, stored in each sidecar.

Legend: N images of a shard. Saved seconds are rank seconds: the predicted time of the omitted work at the measured
speed of the computed work, less the time of the cache itself.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from dithc.config import evaluations
from dithc.sample.parallel import SamplingGroup

KEY = "cache"  # key of a shard's sidecar


def shard_entries(counters: Tensor, team: SamplingGroup) -> dict[str, Any]:
    """Return a shard's sidecar entries from this rank's counters (4) (`BlockCache`); collective over the shard's team."""
    # integers below 2^24 are exact in fp32
    computed, total, seconds, overhead = team.members.all_reduce_(counters.float()).tolist()
    saved = seconds * (total - computed) / computed - overhead if computed else 0.0
    return {KEY: {"blocks_run": [round(computed), round(total)], "seconds_saved": round(saved, 3)}}


def summarize(chosen: evaluations.EvaluationConfig, sidecars: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest's values of a cache from the sidecars of all shards; empty without one."""
    if chosen.cache is None:
        return {}
    reports = [sidecar[KEY] for sidecar in sidecars]
    return {
        "cache": chosen.cache.model_dump(mode="json"),
        "blocks_run": [sum(shard["blocks_run"][index] for shard in reports) for index in (0, 1)],
        "seconds_saved": round(sum(shard["seconds_saved"] for shard in reports), 3),
    }


def describe(numbers: Mapping[str, Any]) -> str:
    computed, total = numbers["blocks_run"]
    saved, seconds = numbers["seconds_saved"], numbers["seconds"]
    speedup = (seconds + saved) / seconds if seconds else 1.0
    return (
        f"computed {computed:,} of {total:,} block runs ({computed / total:.0%}), saved {saved:.1f} s of rank time "
        f"({speedup:.2f} times as fast); images are not exact"
    )
