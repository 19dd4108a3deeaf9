"""Tests of sampling with a cache across steps: manifest entries, and equality on ranks that share branches."""

import logging

import numpy as np
import pytest

from dithc.core.artifacts import Manifest
from dithc.engine.comm import Group
from dithc.sample import sample
from tests.ranks import needs_launcher
from tests.sample.conftest import images_of
from tests.sample.parallel.test_parallel_denoiser import NETWORK, said_by

OF_CACHE = {"cache", "exact", "blocks", "seconds_saved"}


def test_manifest_says_what_was_not_computed(job, caplog) -> None:
    kept = {"sampler": "ddim", "steps": 9}
    plain = sample(job("plain", **kept), Group())
    assert plain is not None
    assert OF_CACHE.isdisjoint(plain)
    settings = {"kind": "taylor", "interval": 3, "order": 1, "warmup_steps": 2}
    one = job("cached", cache=settings, batch_size=4, **kept)
    with caplog.at_level(logging.INFO):
        found = sample(one, Group())
    assert found is not None
    assert (found["cache"], found["exact"], found["network_evaluations"]) == (settings, False, 18)
    assert found["blocks"] == [2 * 2 * 6 * 4, 2 * 2 * 6 * 9]  # blocks, branches, images; calls 0, 1, 4, 7 of 9
    assert "computed 96 of 216 block runs (44%)" in caplog.text
    assert "not exact" in caplog.text
    assert np.abs(images_of(one).astype(float) - images_of(job("plain"))).max() > 0
    read = Manifest.read(one.out, stage="sample")
    assert read.numbers["blocks"] == [96, 216]
    assert read.numbers["seconds_saved"] == found["seconds_saved"]
    assert "seconds_saved" not in one.out.read_text()  # specific to one execution, in the other document
    again = sample(one, Group())
    assert again is not None
    assert again["blocks"] == [96, 216]
    for nothing in ({"kind": "first-block", "threshold": 0.0}, {"kind": "taylor", "interval": 1, "warmup_steps": 1}):
        sample(job("nothing", cache=nothing, **kept), Group())
        assert np.array_equal(images_of(job("nothing")), images_of(job("plain")))


BRANCHES = (
    NETWORK
    + """
from types import SimpleNamespace
import numpy as np
from dithc.config import training
from dithc.diffusion import Objective
from dithc.sample.parallel import rank_groups
from dithc.sample.generate import ImageGenerator
CACHES = (None, {"kind": "first-block", "threshold": 1.4}, {"kind": "taylor", "warmup_steps": 2})
with init_distributed(2) as group:
    codec = SimpleNamespace(bound=1.0, decode=lambda x: x)
    ways = [(guide, {"cache": cache}, ParallelDegrees(cfg=2)) for guide in (None, "start") for cache in CACHES]
    ways.append(("start", {"pipefusion": {"num_pipeline_patch": 3}}, ParallelDegrees(stages=2)))
    results = []
    for guide, way, degrees in ways:
        settings = {"run": "a", "extractor": "x", "sampler": "ddim", "steps": 8, "guidance_scale": 1.5}
        evaluation = training.EvaluationConfig(**settings, guidance_reference=guide, **way)
        given = {"classes": np.arange(10), "objective": Objective.of(training.ObjectiveConfig()), "bf16": False}
        other = network({"mlp": "swiglu"}) if guide else None
        one = ImageGenerator(network({}), codec, evaluation=evaluation, guide=other, **given)
        alone = one.latents(range(3))
        made = one.tally.clone()
        one.team, one.tally = SamplingGroup.of(group, degrees, rank_groups(degrees, ranks=2)), torch.zeros(4).double()
        exact = torch.equal(one.latents(range(3)), alone)
        counts = one.team.members.sum_(one.tally.float())[:2].tolist()
        results.append([exact, counts == made[:2].tolist(), made[0].item() / max(1, made[1].item())])
    gathered = group.gather_objects(results)
    if group.rank == 0:
        print("output " + json.dumps([found for rank in gathered for found in rank]))
"""
)


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_branches_on_two_ranks_give_the_images_of_one(tmp_path) -> None:
    found = said_by(BRANCHES, 2, tmp_path)
    assert [one[:2] for one in found] == [[True, True]] * 14
    shares = [made for _, _, made in found[:6]]
    assert shares[::3] == [0, 0]
    assert shares[2::3] == [0.5, 0.5]  # calls 0, 1, 4, 7 of 8
    assert all(1 / 3 < made < 1 for made in shares[1::3])
