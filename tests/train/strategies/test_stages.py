"""Tests of pipeline parallelism: bitwise equal to training without stages, on any number of ranks per stage."""

import pytest

from dithc.core.logging import UserError
from dithc.engine.comm import Group
from dithc.train import train
from dithc.train.strategies.layout import layout_of
from tests.ranks import needs_launcher, run_on_ranks
from tests.train.conftest import SMALL, assert_equal, rows, tensors_of
from tests.train.step.test_nonfinite import PROGRAM
from tests.train.strategies.test_strategies import MODERN, MUON, STEPS, ten_steps, train_on_ranks

# Without clipping, because a norm over stages sums its squares in another order.
SETTINGS = {"micro_batch_size": 3, "pipeline_stages": 2, "validate_every": STEPS}
LOSSES = ("loss", "mse", "vb", "val_loss")


def losses(job) -> list[list[float | None]]:
    return [[row.get(name) for name in LOSSES] for row in rows(job)]


class TestOnSeveralRanks:
    pytestmark = [pytest.mark.slow, pytest.mark.mpi, needs_launcher]

    @pytest.mark.sampled("stages")
    def test_two_stages_equal_one_rank_bit_for_bit(self, job, make_latents, tmp_path):
        settings = SETTINGS | {"latents": make_latents(tmp_path / "held-out", held_out=7)}
        variants = {
            "labels": {"model": SMALL | {"depth": 3}},
            "bf16": {"model": MODERN, "dtype": "bf16", "activation_checkpointing": "block"},
            "muon": {"model": MODERN, **MUON},
        }
        staged = {name: ten_steps(job, name, **(settings | variant)) for name, variant in variants.items()}
        done = train_on_ranks(tmp_path, list(staged.values()))
        assert done.returncode == 0, done.stderr
        assert "2 stages of 2, 1 blocks" in done.stderr
        for name, variant in variants.items():
            one = ten_steps(job, f"{name}-one", **(settings | variant | {"pipeline_stages": 1}))
            train(one, Group())
            assert losses(staged[name]) == losses(one)
            assert_equal(tensors_of(staged[name]), tensors_of(one))

    @pytest.mark.sampled("stages")
    def test_two_ranks_per_stage_equal_two_ranks_bit_for_bit(self, job, tmp_path):
        variants = {"dp": {}, "zero1": {"sharding": "zero1"}, "zero2": {"sharding": "zero2"}, "muon": MUON}
        plain = [ten_steps(job, f"{n}-2", **(SETTINGS | v | {"pipeline_stages": 1})) for n, v in variants.items()]
        staged = [ten_steps(job, f"{n}-4", **(SETTINGS | v)) for n, v in variants.items()]
        for jobs, ranks in ((plain, 2), (staged, 4)):
            done = train_on_ranks(tmp_path, jobs, ranks=ranks)
            assert done.returncode == 0, done.stderr
        for one, other in zip(plain, staged, strict=True):
            assert losses(other) == losses(one)
            assert_equal(tensors_of(other), tensors_of(one))

    @pytest.mark.sampled("stages")
    def test_checkpoint_resumes_with_another_number_of_stages(self, job, tmp_path):
        settings = {"micro_batch_size": 2, "model": SMALL | {"depth": 3}}
        train(whole := job("whole", **settings), Group())
        for stages, until in ((3, 2), (1, 4), (2, 6)):
            part = job("parts", until=until, pipeline_stages=stages, **settings)
            done = train_on_ranks(tmp_path, [part], ranks=stages)
            assert done.returncode == 0, done.stderr
        assert_equal(tensors_of(part), tensors_of(whole))

    @pytest.mark.sampled("stages")
    def test_number_that_is_not_finite_is_located_on_its_stage(self, job, tmp_path):
        bad = {"weights": {"kind": "weights", "at": 3, "rank": 1}, "latents": {"kind": "latents", "at": 4, "image": 5}}
        given = [(name, fault, ten_steps(job, name, **SETTINGS)) for name, fault in bad.items()]
        done = run_on_ranks(PROGRAM, given=given, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        weights, latents = ((tmp_path / f"{name} of rank 0").read_text() for name in bad)
        assert "rank 1: the weights of blocks.1.attn.qkv.weight" in weights
        assert "rank 0: the latents of image 5 of the global batch" in latents


def test_stages_divide_the_ranks_in_order():
    grid = [layout_of("dp", rank=rank, size=6, first_ranks=[0] * 6, dies=1, stages=2) for rank in range(6)]
    assert [layout.data_rank for layout in grid] == [0, 1, 2, 0, 1, 2]
    assert [layout.num_later_stages for layout in grid] == [1, 1, 1, 0, 0, 0]
    assert sum(layout.loss_weight for layout in grid) == grid[0].data_size == 3


def test_ranks_that_stages_cannot_share_are_rejected():
    with pytest.raises(UserError, match="pipeline_stages"):
        layout_of("dp", rank=0, size=3, first_ranks=[0] * 3, dies=1, stages=2)
