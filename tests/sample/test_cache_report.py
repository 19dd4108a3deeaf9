"""Tests of sampling with a cache across steps: manifest entries, and equality without reuse."""

import logging

import numpy as np

from dithc.core.artifacts import Manifest
from dithc.engine.comm import Group
from dithc.sample import sample
from tests.sample.conftest import images_of

OF_CACHE = {"cache", "blocks_run", "seconds_saved"}


def test_manifest_records_computed_blocks_of_a_cached_run(job, caplog) -> None:
    kept = {"sampler": "ddim", "steps": 9}
    plain = sample(job("plain", **kept), Group())
    assert plain is not None
    assert OF_CACHE.isdisjoint(plain)
    settings = {"kind": "taylor", "interval": 3, "order": 1, "warmup_steps": 2}
    one = job("cached", cache=settings, batch_size=4, **kept)
    with caplog.at_level(logging.INFO):
        found = sample(one, Group())
    assert found is not None
    assert (found["cache"], found["network_evaluations"]) == (settings, 18)
    assert found["blocks_run"] == [2 * 2 * 6 * 4, 2 * 2 * 6 * 9]  # blocks, branches, images; calls 0, 1, 4, 7 of 9
    assert "computed 96 of 216 block runs (44%)" in caplog.text
    assert "not exact" in caplog.text
    assert np.abs(images_of(one).astype(float) - images_of(job("plain"))).max() > 0
    read = Manifest.read(one.out, stage="sample")
    assert read.summary["blocks_run"] == [96, 216]
    assert read.summary["seconds_saved"] == found["seconds_saved"]
    assert "seconds_saved" not in one.out.read_text()  # specific to one execution, in the other document
    again = sample(one, Group())
    assert again is not None
    assert again["blocks_run"] == [96, 216]
    for nothing in ({"kind": "first-block", "threshold": 0.0}, {"kind": "taylor", "interval": 1, "warmup_steps": 1}):
        sample(job("nothing", cache=nothing, **kept), Group())
        assert np.array_equal(images_of(job("nothing")), images_of(job("plain")))
