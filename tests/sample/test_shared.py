"""Tests of shards drawn by a group of ranks: equality with the images of one rank for every division."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.comm import Group
from dithc.runs import Manifest
from dithc.sample import Job, sample
from tests.ranks import needs_launcher, on_ranks

PROGRAM = """
import pickle, sys
from dithc.comm import ranks
from dithc.sample import sample
with open(sys.argv[1], "rb") as file:
    jobs = pickle.load(file)
with ranks(int(sys.argv[2])) as group:
    for job in jobs:
        sample(job, group)
"""
WAYS: list[dict[str, Any]] = [
    {"degrees": {"data": 2}},
    {"degrees": {"cfg": 2}},
    {"degrees": {"cfg": 2}, "guidance_channels": "first3"},
    {"degrees": {"shared": 2}},
    {"degrees": {"shared": 2}, "guidance": 1.0, "sampler": "dpm-solver"},
    {"degrees": {"ulysses": 2}},
    {"images": 65},
]
MANY = (pytest.mark.slow, pytest.mark.sampled("several ranks"))


def images_of(job: Job) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted(job.out.parent.glob("shard-*.npy"))])


@pytest.mark.mpi
@needs_launcher
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MANY), pytest.param(4, marks=MANY)])
def test_ranks_that_share_a_shard_make_the_images_of_one(ranks: int, job: Callable[..., Job], tmp_path: Path) -> None:
    ways = WAYS if ranks % 2 == 0 else [{"degrees": {"shared": 3}}, {"degrees": {"data": 3}}, {"images": 65}]
    alone = [
        job(f"one-{number}", **{name: way[name] for name in way if name != "degrees"})
        for number, way in enumerate(ways)
    ]
    for one in alone:
        assert sample(one, Group()) is not None
    shared = [job(f"many-{number}", **way) for number, way in enumerate(ways)]
    done = on_ranks(PROGRAM, ranks=ranks, given=shared, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for one, many in zip(alone, shared, strict=True):
        assert np.array_equal(images_of(one), images_of(many)), many.degrees
        assert Manifest.read(one.out).digest == Manifest.read(many.out).digest
    if ranks == 2:
        assert "2 rank(s) each, cfg 2" in done.stderr


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@needs_launcher
def test_shards_of_other_degrees_are_kept(job: Callable[..., Job], tmp_path: Path) -> None:
    kept, more = job("kept", images=64), job("kept", images=65, degrees={"shared": 2})
    assert sample(kept, Group()) is not None
    before = (kept.out.parent / "shard-00000.npy").stat().st_mtime_ns
    done = on_ranks(PROGRAM, ranks=2, given=[more], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 shards made now" in done.stderr
    assert (kept.out.parent / "shard-00000.npy").stat().st_mtime_ns == before
