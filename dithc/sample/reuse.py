"""What of a sampling's images is not exact, for the manifest; and what a cache across steps saved, kept beside each shard.

Legend: N images of a shard; saved seconds are of ranks: what the work left out would have taken at the measured pace of the work
done, less what the cache itself took.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from dithc.config import training
from dithc.parallel import Team

KEY = "cache"  # of a shard's sidecar


def of_shard(tally: Tensor, team: Team) -> dict[str, Any]:
    """Return a shard's sidecar entries from this rank's tally (4) (`parallel.cache.Cached`); collective over the shard's team."""
    made, whole, seconds, beside = team.members.sum_(tally.float()).tolist()  # whole numbers below 2^24 are exact
    saved = seconds * (whole - made) / made - beside if made else 0.0
    return {KEY: {"blocks": [round(made), round(whole)], "seconds_saved": round(saved, 3)}}


def numbers(chosen: training.Evaluation, sidecars: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
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
    """Numbers of a sampling with a cache, in words."""
    made, whole = numbers["blocks"]
    saved, seconds = numbers["seconds_saved"], numbers["seconds"]
    times = (seconds + saved) / seconds if seconds else 1.0
    return (
        f"{made:,} of {whole:,} runs of a block made ({made / whole:.0%}), {saved:.1f} s of ranks saved ({times:.2f} times as "
        "fast); images are not exact"
    )
