"""Tests of cftp, dp and dp+tp: equal losses and checkpoints, without divergence between ranks."""

import subprocess
from pathlib import Path

import pytest
import torch

from dithc.core.logging import UserError
from dithc.core.tensor_files import assemble, read_tensors
from dithc.engine.comm import Group
from dithc.train import Strategy, train
from dithc.train.strategies.layout import RankGrid, layout_of
from dithc.train.strategies.tensor_parallel import TensorSplit
from tests.ranks import needs_launcher, run_on_ranks
from tests.train.conftest import checkpoint, hashes, rows

STEPS = 10
# Unit roundoff, times the longest dot product (the MLP's width, 4 x 32), times the consecutive linear layers of an
# activation (patch, 2 blocks of 4, final): the worst case of the forward pass to first order, as in test_golden.
FP32 = 2**-24 * 128 * 10
# bf16 products differ between strategies in the rounding of the sum over ranks, once per row-parallel layer (2 blocks
# of 2).
BF16 = 2**-8 * 4
PROGRAM = """
import dataclasses, pickle, sys
import torch
from dithc.engine.comm import connect_ranks
from dithc.engine.hardware import discover_machine
from dithc.train import Strategy, train
from dithc.train.strategies import strategy
with connect_ranks(int(sys.argv[2]), timeout_seconds=600) as group, open(sys.argv[1], "rb") as file:
    torch.set_num_threads(1)
    jobs, dies = pickle.load(file)
    if dies > 1:  # a node of so many dies, of one cluster for each of their ranks; each rank sees the core it is bound to
        node = discover_machine()
        core = dataclasses.replace(node.visible_cores[0], index=group.rank, die=group.rank * dies // group.size)
        strategy.discover_machine = lambda: dataclasses.replace(node, cores=(core,))
    assert all(train(job, group) == 0 for job in jobs)
"""

ALIKE = """
import hashlib, torch
from dithc.engine.comm import connect_ranks
from dithc.train.step_benchmark import StepBenchmark, _trainer
with connect_ranks(2, timeout_seconds=600) as group:
    torch.set_num_threads(1)
    model = KIND | {"hidden_size": 64, "depth": 2, "num_heads": 2}
    trainer = _trainer(StepBenchmark(model=model, batch=2, dtype="bf16", strategy="dp+tp"), group)
    for number in range(1, 4):
        trainer.step(number)
    states = {"weight": trainer.strategy.module.state_dict(), "ema": trainer.ema.state, "adam": trainer.optimizer.state()}
    found = {
        f"{kind} {name}": hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
        for kind, state in states.items() for name, value in state.items()
    }
    cut = trainer.strategy.shards.cuts
    assert any("qkv.weight" in name for name in cut) and not any("adaLN" in name for name in cut)
    one, two = group.gather_objects(found)
    for name in one:
        parameter = name.split(" ")[1].removeprefix("exp_avg_sq.").removeprefix("exp_avg.")
        assert (one[name] == two[name]) == (parameter not in cut), name
"""

MODERN = {"preset": "ModernDiT-S/2", "qk_norm": True, "hidden_size": 32, "depth": 2, "num_heads": 2}
MUON = {"optimizer": {"kind": "muon"}}
several_ranks = [pytest.mark.slow, pytest.mark.mpi, needs_launcher]


def train_on_ranks(folder: Path, jobs, *, ranks=2, dies=1) -> "subprocess.CompletedProcess[str]":
    return run_on_ranks(PROGRAM, ranks=ranks, given=(jobs, dies), folder=folder)


def ten_steps(job, store, **changes):
    settings = {"until": STEPS, "steps": STEPS, "warmup_steps": 3, "checkpoint_every": STEPS}
    return job(store, **(settings | changes))


def assert_close(found, truth, *, tolerance):
    assert len(found) == len(truth) == STEPS
    for row, expected in zip(found, truth, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=tolerance)
        # The norm sums squares of gradients that pass the layers twice, and diverges with the weights.
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=10 * tolerance)


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", FP32), ("bf16", BF16)])
    def test_cftp_dp_and_dp_tp_losses_match_over_ten_steps(self, job, make_latents, tmp_path, dtype, tolerance):
        latents = make_latents(tmp_path / "held-out", held_out=7)
        settings = {
            "dtype": dtype,
            "micro_batch_size": 3,
            "max_grad_norm": 0.1,
            "latents": latents,
            "validate_every": STEPS // 2,
        }
        one = ten_steps(job, "cftp", **settings)
        train(one, Group())
        several = [ten_steps(job, name, strategy=name, **settings) for name in ("dp", "dp+tp")]
        done = train_on_ranks(tmp_path, several)
        assert done.returncode == 0, done.stderr
        for name, trained in zip(("dp", "dp+tp"), several, strict=True):
            assert f"strategy {name}: 2 rank(s)" in done.stderr
            assert_close(rows(trained), rows(one), tolerance=tolerance)
            for row, expected in zip(rows(trained)[4::5], rows(one)[4::5], strict=True):
                assert row["val_loss"] == pytest.approx(expected["val_loss"], rel=tolerance)

    @pytest.mark.sampled("several ranks")
    def test_four_ranks_on_two_dies_split_batch_and_layers(self, job, make_latents, tmp_path):
        measured = {"latents": make_latents(tmp_path / "held-out", held_out=1), "validate_every": STEPS // 2}
        one, grid = (
            ten_steps(job, "one", **measured),
            ten_steps(job, "grid", strategy="dp+tp", activation_checkpointing="block", **measured),
        )
        train(one, Group())
        done = train_on_ranks(tmp_path, [grid], ranks=4, dies=2)
        assert done.returncode == 0, done.stderr
        assert "2 share(s) of the global batch, 2 rank(s) per layer" in done.stderr
        assert_close(rows(grid), rows(one), tolerance=FP32)
        assert rows(grid)[-1]["val_loss"] == pytest.approx(rows(one)[-1]["val_loss"], rel=FP32)  # a single tile

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize("optimizer", [{}, MUON], ids=["adamw", "muon"])
    def test_modern_blocks_match_single_rank_training_under_any_sharding(self, job, tmp_path, optimizer):
        """A rank has complete hidden features of a gated MLP; norms of its heads equal the norms of all heads."""
        settings = {"model": MODERN, "max_grad_norm": 0.1, "micro_batch_size": 3, **optimizer}
        one = ten_steps(job, "one", **settings)
        several = [
            ten_steps(job, "layers", strategy="dp+tp", **settings),
            ten_steps(job, "state", strategy="dp", sharding="zero1", **settings),
            ten_steps(job, "ddp", strategy="dp", gradient_sync="ddp", **settings),
        ]
        train(one, Group())
        done = train_on_ranks(tmp_path, several)
        assert done.returncode == 0, done.stderr
        folders = [checkpoint(job).folder for job in (one, *several)]
        truth, *others = (
            {**read_tensors(f / "model.safetensors"), **read_tensors(f / "optimizer.safetensors")} for f in folders
        )
        for trained, found in zip(several, others, strict=True):
            assert_close(rows(trained), rows(one), tolerance=10 * FP32)
            assert found.keys() == truth.keys()
            for name, value in truth.items():
                assert found[name].shape == value.shape, name
                if name.startswith(("exp_avg.", "momentum.")):
                    assert (found[name] - value).norm() < 0.01 * value.norm() + 1e-9, name

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize("model", [{"preset": "DiT-S/2"}, {"preset": "ModernDiT-S/2", "qk_norm": True}], ids=str)
    def test_replicated_state_is_bit_identical_on_all_ranks(self, model):
        done = run_on_ranks(ALIKE.replace("KIND", repr(model)))
        assert done.returncode == 0, done.stderr

    @pytest.mark.sampled("several ranks")
    def test_three_ranks_with_unequal_shares_resume_bit_exactly(self, job, tmp_path):
        """Sums of three ranks or more depend on their order, and 8 images are not divisible by three."""
        jobs = [
            job("whole", micro_batch_size=2),
            job("parts", micro_batch_size=2, until=3),
            job("parts", micro_batch_size=2),
        ]
        done = train_on_ranks(tmp_path, jobs, ranks=3)
        assert done.returncode == 0, done.stderr
        assert hashes(jobs[0]) == hashes(jobs[2])

    @pytest.mark.sampled("several ranks")
    def test_head_count_not_divisible_by_ranks_is_rejected(self, job, tmp_path):
        model = {"preset": "DiT-S/2", "hidden_size": 48, "depth": 1, "num_heads": 3}
        done = train_on_ranks(tmp_path, [ten_steps(job, "three", strategy="dp+tp", model=model)])
        assert done.returncode == 2, done.stderr
        assert "heads of the model" in done.stderr
        assert "expected: a multiple of 2" in done.stderr


@pytest.mark.parametrize("cut", [TensorSplit(0), TensorSplit(1), TensorSplit(0, 3)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_assembled_shards_equal_the_complete_tensor(cut, size):
    whole = torch.randn(24, 8)
    shards = [cut.shard(whole, rank=rank, size=size) for rank in range(size)]
    assert all(shard.is_contiguous() and shard.numel() == whole.numel() // size for shard in shards)
    pieces = [piece for rank, shard in enumerate(shards) for piece in cut.pieces("w", shard, rank=rank, size=size)]
    assert torch.equal(assemble(pieces)["w"], whole)


def test_packed_qkv_rows_are_split_by_heads():
    whole = torch.arange(12.0)  # q, k and v of 2 heads of width 2
    assert TensorSplit(0, 3).shard(whole, rank=1, size=2).tolist() == [2, 3, 6, 7, 10, 11]


def test_layout_splits_layers_within_a_die_and_the_batch_across_dies():
    firsts = [0] * 16 + [16] * 16  # two nodes of 4 dies of 4 clusters
    grid = [layout_of("dp+tp", rank=rank, size=32, first_ranks=firsts, dies=4) for rank in range(len(firsts))]
    assert {layout.tensor_size for layout in grid} == {4}
    assert [layout.data_rank for layout in grid] == [rank // 4 for rank in range(32)]
    assert layout_of("dp", rank=5, size=32, first_ranks=firsts, dies=4).data_size == 32


@pytest.mark.parametrize("firsts", [[0, 0, 0], [0, 1, 0, 1]])
def test_rank_layout_incompatible_with_dies_is_rejected(firsts):
    with pytest.raises(UserError, match="ranks of strategy dp"):
        layout_of("dp+tp", rank=0, size=len(firsts), first_ranks=firsts, dies=1 if 1 in firsts else 2)


def test_backward_after_the_rank_context_raises_user_error():
    strategy = Strategy(torch.nn.Linear(1, 1))
    strategy.layout = RankGrid(size=2)
    with pytest.raises(UserError, match="after the end of its"):
        strategy.backward(torch.ones(()))
