"""Tests of ZeRO-1 and ZeRO-2: bitwise equal to unsharded training, sharded state, and resumption in both directions."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.train.strategies.layout import RankGrid
from dithc.train.strategies.strategy import Strategy
from tests.engine.comm.test_group import run_program
from tests.train.conftest import assert_equal, rows, tensors_of
from tests.train.strategies.test_strategies import STEPS, several_ranks, ten_steps, train_on_ranks

PROGRAM = Path(__file__).with_name("zero_program.py")


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize(
        ("ranks", "scenes", "environment"),
        [
            (2, ("same_training", "released_gradients", "late_copied_weights", "measured_exchange"), {}),
            (4, ("few_steps",), {}),
            (4, ("within_nodes",), {"DITHC_TEST_NODES": "2"}),
            (3, ("few_steps",), {"DITHC_TEST_COMM": '{"collectives": "iallreduce"}'}),
        ],
    )
    def test_zero1_training_is_bit_identical_to_unsharded(self, ranks, scenes, environment):
        done = run_program(str(PROGRAM), ranks, str(ranks), *scenes, **environment)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {ranks} is done" for rank in range(ranks)]
        assert "weights are sent in fp32" in done.stderr

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize(
        ("ranks", "settings", "environment"),
        [(2, {}, {}), (3, {"collectives": "iallreduce"}, {}), (4, {}, {"DITHC_TEST_NODES": "2"})],
    )
    def test_bf16_weight_gather_matches_a_rank_with_rounded_weights(self, ranks, settings, environment):
        environment |= {"DITHC_TEST_COMM": json.dumps({"param_gather_dtype": "bf16"} | settings)}
        done = run_program(str(PROGRAM), ranks, str(ranks), "rounded_weights", **environment)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {ranks} is done" for rank in range(ranks)]
        assert "weights are sent in bf16" in done.stderr

    @pytest.mark.sampled("several ranks")
    def test_bf16_gather_without_the_mpi_backend_is_rejected(self):
        environment = {"DITHC_TEST_COMM": '{"param_gather_dtype": "bf16"}', "DITHC_COMM_BACKEND": "gloo"}
        done = run_program(str(PROGRAM), 2, "2", "few_steps", **environment)
        assert done.returncode == 2, done.stderr
        assert "expected: dithc-mpi" in done.stderr

    @pytest.mark.sampled("several ranks")
    def test_zero1_and_unsharded_checkpoints_resume_interchangeably(self, job, tmp_path):
        half, plain = STEPS // 2, {"strategy": "dp"}
        shared = plain | {"sharding": "zero1"}
        whole = ten_steps(job, "whole", **plain)
        parts = [
            ten_steps(job, folder, until=until, **settings)
            for folder, first, second in (("on", shared, plain), ("off", plain, shared))
            for until, settings in ((half, first), (STEPS, second))
        ]
        done = train_on_ranks(tmp_path, [whole, *parts])
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("zero1: 2 ranks") == 2, "two of the four jobs, logged by rank 0"
        truth, expected_tensors = rows(whole), tensors_of(whole)
        for last in (parts[1], parts[3]):
            assert [row["loss"] for row in rows(last)] == [row["loss"] for row in truth]
            assert_equal(tensors_of(last), expected_tensors)
        for row in truth:
            assert row["compute_seconds"] == pytest.approx(row["step_seconds"] - row["exposed_seconds"])
        assert Manifest.read(whole.paths.out, stage="train").summary["exposed_seconds_median"] > 0


@pytest.mark.parametrize(
    ("layout", "settings"),
    [(RankGrid(name="dp+tp", size=2, tensor_size=2), {}), (RankGrid(name="dp", size=2), {"gradients": "ddp"})],
)
def test_strategies_incompatible_with_zero1_are_rejected(layout, settings):
    with pytest.raises(UserError, match="sharding zero1"):
        Strategy(nn.Linear(2, 2), layout, sharding="zero1", **settings)


def test_single_rank_disables_zero1_and_logs_the_change(caplog):
    with caplog.at_level("INFO", logger="dithc"):
        strategy = Strategy(nn.Linear(2, 2), RankGrid(), sharding="zero1")
    assert strategy.sharded_state is None
    assert "sharding zero1 is off" in caplog.text
    strategy.prepare(torch.zeros(1, 2), torch.zeros(1), torch.zeros(1))
    strategy.wait_for_weights()
