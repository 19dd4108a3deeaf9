"""Tests of shards drawn by a group of ranks: equality with the images of one rank for every division."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
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
FIRST_BLOCK = {
    "cache": {"kind": "first-block", "threshold": 0.2},
    "sampler": "ddim",
    "steps": 8,
}  # for some of the rows
TAYLOR = {"cache": {"kind": "taylor", "warmup_steps": 2}, "sampler": "ddim", "steps": 8}
CASES: list[dict[str, Any]] = [
    {"degrees": {"data": 2}},
    {"degrees": {"cfg": 2}},
    {"degrees": {"cfg": 2}, "guidance_channels": "first3"},
    {"degrees": {"shared": 2}},
    {"degrees": {"shared": 2}, "guidance_scale": 1.0, "sampler": "dpm-solver"},
    {"degrees": {"ulysses": 2}},
    {"degrees": {"cfg": 2}, **FIRST_BLOCK},
    {"degrees": {"shared": 2}, **FIRST_BLOCK},
    {"degrees": {"cfg": 2}, **TAYLOR, "guidance_reference": "start"},
    {"degrees": {"ulysses": 2}, **TAYLOR},
    {"num_images": 65},
]


@pytest.mark.mpi
@needs_launcher
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MANY), pytest.param(4, marks=MANY)])
def test_ranks_sharing_a_shard_generate_the_images_of_a_single_rank(
    ranks: int, job: Callable[..., SamplingJob], tmp_path: Path
) -> None:
    cases = CASES if ranks % 2 == 0 else [{"degrees": {"shared": 3}}, {"degrees": {"data": 3}}, {"num_images": 65}]
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
        if one.evaluation.cache is not None:
            computed, total = Manifest.read(many.out).summary["blocks_run"]
            assert [computed, total] == Manifest.read(one.out).summary["blocks_run"]
            assert total / 2 <= computed < total
    if ranks == 2:
        assert "2 rank(s) each, cfg 2" in done.stderr


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@needs_launcher
def test_existing_shards_are_kept_under_different_degrees(job: Callable[..., SamplingJob], tmp_path: Path) -> None:
    kept, more = job("kept", num_images=64), job("kept", num_images=65, degrees={"shared": 2})
    assert sample(kept, Group()) is not None
    before = (kept.out.parent / "shard-00000.npy").stat().st_mtime_ns
    done = run_on_ranks(PROGRAM, ranks=2, given=[more], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 shards made now" in done.stderr
    assert (kept.out.parent / "shard-00000.npy").stat().st_mtime_ns == before


SETTINGS: dict[str, Any] = {"sampler": "ddim", "steps": 5, "guidance_scale": 1.5}


def pipeline_job(
    job: Callable[..., SamplingJob], folder: str, *, stages: int = 1, patches: int = 4, **more: Any
) -> SamplingJob:
    """Return a sampling job with the settings in its manifest."""
    warm = {"warmup_steps": more.pop("warmup_steps", 1)}
    staged_job = job(
        folder,
        pipefusion={"pipefusion_parallel_degree": stages, "num_pipeline_patch": patches, **warm},
        **{**SETTINGS, **more},
    )
    assert staged_job.evaluation.pipefusion is not None
    staged_job.spec["pipefusion"] = staged_job.evaluation.pipefusion.semantic_settings
    return staged_job


def test_manifest_records_exactness_of_pipefusion_images(job, caplog) -> None:
    plain, one = job("plain", **SETTINGS), pipeline_job(job, "staged", warmup_steps=2)
    numbers = sample(plain, Group())
    assert numbers is not None
    assert {"pipefusion", "exact"}.isdisjoint(numbers)
    with caplog.at_level(logging.INFO):
        numbers = sample(one, Group())
    assert numbers is not None
    assert (numbers["pipefusion"], numbers["exact"]) == ({"num_pipeline_patch": 4, "warmup_steps": 2}, False)
    assert "pipefusion, 4 patches, 2 warm-up steps: images are not exact" in caplog.text
    assert Manifest.read(one.out, stage="sample").summary["exact"] is False
    assert not np.array_equal(images_of(one), images_of(plain))
    for number, exact in enumerate(({"patches": 1}, {"warmup_steps": 5})):
        whole = pipeline_job(job, f"whole-{number}", **exact)
        numbers = sample(whole, Group())
        assert numbers is not None
        assert numbers["exact"] is True
        assert np.array_equal(images_of(whole), images_of(plain))


def test_unsupported_stages_and_degrees_are_rejected_before_sampling(job) -> None:
    for staged_job, messages in (
        (
            pipeline_job(job, "x", stages=2),
            ["evaluations.toy.pipefusion", "2 stages on 1 rank", "`num_pipeline_patch: 4`"],
        ),
        (pipeline_job(job, "x", patches=17), ["num_pipeline_patch", "17", "the 16 tokens of an image"]),
        (pipeline_job(job, "x", stages=3), ["pipefusion_parallel_degree", "3", "the 2 blocks of the network"]),
        (pipeline_job(job, "x", degrees={"shared": 2}), ["machine.sampling", "shared 2"]),
    ):
        with pytest.raises(UserError) as error:
            sample(staged_job, Group())
        assert all(message in str(error.value) for message in [*messages, "got", "expected", "fix"])
        assert not staged_job.out.parent.exists() or not list(staged_job.out.parent.iterdir())


def test_existing_images_require_no_stage_ranks(job) -> None:
    assert sample(pipeline_job(job, "here"), Group()) is not None
    numbers = sample(pipeline_job(job, "here", stages=2), Group())
    assert numbers is not None
    assert numbers["images"] == 6


@pytest.mark.sampled("several ranks")
@pytest.mark.mpi
@needs_launcher
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=MANY)])
def test_stage_ranks_generate_the_images_of_a_single_rank(
    ranks: int, job: Callable[..., SamplingJob], tmp_path: Path
) -> None:
    """Use four ranks as two stages in two branches of guidance, or for two images."""
    cases: list[dict[str, Any]] = [
        {},
        {"patches": 5, "sampler": "dpm-solver", "guidance_scale": 1.0},
        {"patches": 1, "sampler": "ddpm", "guidance_channels": "first3"},
        {"patches": 2, "warmup_steps": 3, "sampler": "unipc"},
        {"guidance_reference": "start"},
    ]
    cuts = [{}] * 5 if ranks == 2 else [{"cfg": 2}, {"data": 2}, {"cfg": 2}, {"data": 2}, {"cfg": 2}]
    single = [pipeline_job(job, f"one-{number}", **case) for number, case in enumerate(cases)]
    for one in single:
        assert sample(one, Group()) is not None
    many = [
        pipeline_job(job, f"many-{number}", stages=2, degrees=degrees, **case)
        for number, (case, degrees) in enumerate(zip(cases, cuts, strict=True))
    ]
    done = run_on_ranks(PROGRAM, ranks=ranks, given=many, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stages 2" in done.stderr
    for one, staged_job in zip(single, many, strict=True):
        assert np.array_equal(images_of(one), images_of(staged_job)), staged_job.evaluation.pipefusion
        assert Manifest.read(one.out).digest == Manifest.read(staged_job.out).digest
    assert not np.array_equal(images_of(single[0]), images_of(single[3]))  # control: other patches change the bits
