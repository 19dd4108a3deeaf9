"""Tests of shards drawn by a group of ranks: equality with the images of one rank for every division."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.core.artifacts import Manifest
from dithc.engine.comm import Group
from dithc.sample import SamplingJob, sample
from tests.ranks import needs_launcher, run_on_ranks
from tests.sample.conftest import images_of
from tests.sample.parallel.test_parallel_denoiser import MANY

PROGRAM = """
import pickle, sys
from dithc.engine.comm import init_distributed
from dithc.sample import sample
with open(sys.argv[1], "rb") as file:
    jobs = pickle.load(file)
with init_distributed(int(sys.argv[2])) as group:
    for job in jobs:
        sample(job, group)
"""
CASES: list[dict[str, Any]] = [
    {"degrees": {"data": 2}},
    {"degrees": {"cfg": 2}},
    {"degrees": {"cfg": 2}, "guidance_channels": "first3"},
    {"degrees": {"data": 2}, "guidance_scale": 1.0, "sampler": "dpm-solver"},
    {"degrees": {"cfg": 2}, "guidance_reference": 4},
    {"num_images": 65},
]


@pytest.mark.mpi
@needs_launcher
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MANY), pytest.param(4, marks=MANY)])
def test_ranks_sharing_a_shard_generate_the_images_of_a_single_rank(
    ranks: int, job: Callable[..., SamplingJob], tmp_path: Path
) -> None:
    cases = CASES if ranks % 2 == 0 else [{"degrees": {"data": 3}}, {"num_images": 65}]
    plain = [{name: case[name] for name in case if name != "degrees"} for case in cases]
    single = [job(f"one-{number}", **case) for number, case in enumerate(plain)]
    for one in single:
        assert sample(one, Group()) is not None
    shared = [job(f"many-{number}", **case) for number, case in enumerate(cases)]
    done = run_on_ranks(PROGRAM, ranks=ranks, given=shared, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for one, many in zip(single, shared, strict=True):
        assert np.array_equal(images_of(one), images_of(many)), many.degrees
        assert Manifest.read(one.out).digest == Manifest.read(many.out).digest
    if ranks == 2:
        assert "2 rank(s) each, cfg 2" in done.stderr


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@needs_launcher
def test_existing_shards_are_kept_under_different_degrees(job: Callable[..., SamplingJob], tmp_path: Path) -> None:
    kept, more = job("kept", num_images=64), job("kept", num_images=65, degrees={"cfg": 2})
    assert sample(kept, Group()) is not None
    before = (kept.out.parent / "shard-00000.npy").stat().st_mtime_ns
    done = run_on_ranks(PROGRAM, ranks=2, given=[more], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 shards made now" in done.stderr
    assert (kept.out.parent / "shard-00000.npy").stat().st_mtime_ns == before
