"""Tests of Muon: torch's steps, a closed form by SVD, one owner per matrix, transfer between rank counts."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dithc.config import training
from dithc.core.logging import UserError
from dithc.core.tensor_files import assemble
from dithc.engine.comm import Group
from dithc.engine.cost import memory
from dithc.model import DiT
from dithc.train import train
from dithc.train.muon_matrices import HIDDEN, MatrixOwnership, matrices_of, owners_of
from dithc.train.optimizer.ema import Ema
from dithc.train.optimizer.optimizer import Optimizer
from dithc.train.strategies.layout import RankGrid
from dithc.train.strategies.strategy import Strategy
from dithc.train.strategies.tensor_parallel import ShardOwnership, TensorShards, TensorSplit
from dithc.train.strategies.zero import ElementRange, RunOwnership
from tests.engine.comm.test_group import run_program
from tests.engine.hcops.test_newton_schulz import svd_map
from tests.train.conftest import rows, tensors_of
from tests.train.strategies.test_strategies import FP32, STEPS, assert_close, several_ranks, ten_steps, train_on_ranks

PROGRAM = Path(__file__).with_name("muon_program.py")
MUON = {"optimizer": {"kind": "muon"}}
WIDTH, DEPTH = 32, 2
PER_BLOCK = sum(count for name, count in HIDDEN.items() if "gate_up" not in name)


def small_dit() -> DiT:
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "depth": DEPTH, "num_heads": 2}
    return DiT.from_preset("DiT-S/2", input_size=(8, 8), in_channels=4, num_classes=3, **sizes)


def run_of(**changes: object) -> training.RunConfig:
    values = {"dataset": "toy", "lr": 0.01, "weight_decay": 0.1, "max_grad_norm": None, **MUON}
    return training.RunConfig.model_validate(values | changes)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in trained_parameters(model).items()}


def set_gradients(model: nn.Module, step: int) -> None:
    draws = torch.Generator().manual_seed(step)
    for value in trained_parameters(model).values():
        value.grad = torch.randn(value.shape, generator=draws)


def test_matrices_are_exactly_the_linear_layers_of_the_blocks():
    shapes = shapes_of(small_dit())
    matrices = matrices_of(shapes)
    linear = {
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if name.startswith("blocks.") and len(shape) == 2 and "adaLN" not in name
    }
    assert {matrix.name.removesuffix(".weight") for matrix in matrices} == linear
    assert len(matrices) == DEPTH * PER_BLOCK == 2 * 6
    assert sum(matrix.size for matrix in matrices) == DEPTH * 12 * WIDTH**2
    sizes = {matrix.name.partition(".")[2].partition(".")[2]: (matrix.rows, matrix.columns) for matrix in matrices}
    square, tall = (WIDTH, WIDTH), (4 * WIDTH, WIDTH)
    assert [sizes[kind] for kind in HIDDEN if kind in sizes] == [square, square, tall, tall[::-1]]


def test_muon_memory_estimate_omits_a_single_moment_per_matrix():
    model = {"preset": "DiT-S/2", "hidden_size": WIDTH, "depth": DEPTH, "num_heads": 2}
    muon, adamw = run_of(model=model), run_of(model=model, optimizer={"kind": "adamw"})
    state_bytes = [
        sum(value.nbytes for value in Optimizer.of_run(small_dit(), run).state().values() if value.dim())
        for run in (adamw, muon)
    ]
    adamw_memory, muon_memory = memory.rank_memory(adamw, snapshot=True), memory.rank_memory(muon, snapshot=True)
    saved = state_bytes[0] - state_bytes[1]
    assert adamw_memory.optimizer - muon_memory.optimizer == saved == adamw_memory.snapshot - muon_memory.snapshot


@pytest.mark.parametrize("backend", ["reference", "c"])
@pytest.mark.parametrize("clip", [None, 2.0])
def test_muon_step_equals_scaled_orthogonalized_momentum(backend, clip, use_backend):
    use_backend(backend)
    model, name, lr, decay = small_dit(), "blocks.1.mlp.fc2.weight", 0.01, 0.1
    settings = run_of(max_grad_norm=clip, optimizer={"kind": "muon", "momentum": 0.8})
    optimizer, ema = Optimizer.of_run(model, settings), Ema(model, training.EmaConfig(decay=0.5, warmup=False))
    weight = trained_parameters(model)[name].detach().double()
    momentum, average = torch.zeros_like(weight), weight.clone()
    for step in (1, 2, 3):
        set_gradients(model, step)
        gradient, norm = trained_parameters(model)[name].grad.double(), optimizer.clip()
        gradient *= 1.0 if clip is None else clip / (norm + 1e-6)
        momentum = 0.8 * momentum + gradient  # Jordan's form; its scale has no effect
        weight = weight * (1 - lr * decay) - lr * 0.2 * math.sqrt(4 * WIDTH) * svd_map(gradient + 0.8 * momentum, 5)
        average = 0.5 * average + 0.5 * weight
        optimizer.update(step, ema=ema)
    found = trained_parameters(model)[name].detach().double()
    torch.testing.assert_close(found, weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(ema.state[name].double(), average, rtol=0, atol=1e-6)


def test_first_adamw_update_of_other_weights_has_the_ratio_of_the_rate():
    model, lr, ratio = small_dit(), 0.01, 0.3
    optimizer = Optimizer.of_run(model, run_of(weight_decay=0.0, optimizer={"kind": "muon", "adamw_ratio": ratio}))
    name = "blocks.0.adaLN_modulation.1.weight"
    before = trained_parameters(model)[name].detach().clone()
    set_gradients(model, 1)
    sign = trained_parameters(model)[name].grad.sign()
    optimizer.update(1)
    torch.testing.assert_close(trained_parameters(model)[name].detach(), before - ratio * lr * sign, rtol=0, atol=1e-5)


def test_weights_without_gradient_are_unchanged_and_averages_are_updated():
    model, name = small_dit(), "blocks.0.attn.proj.weight"
    optimizer, ema = Optimizer.of_run(model, run_of()), Ema(model, training.EmaConfig(decay=0.5, warmup=False))
    set_gradients(model, 1)
    weight = trained_parameters(model)[name]
    with torch.no_grad():
        weight.add_(1.0)
    weight.grad, before = None, weight.detach().clone()
    optimizer.update(1, ema=ema)
    assert torch.equal(weight, before)
    torch.testing.assert_close(ema.state[name], before - 0.5)
    assert not optimizer.state()[f"momentum.{name}"].any()


def test_muon_state_survives_pieces_and_relocation_bit_exactly():
    first, second = small_dit(), small_dit()
    first_optimizer, second_optimizer = Optimizer.of_run(first, run_of()), Optimizer.of_run(second, run_of())
    for step in (1, 2, 3):
        if step == 3:
            second_optimizer.load(assemble(first_optimizer.pieces()))
            second_optimizer.relocate(lambda _, value: value.clone())
            second.load_state_dict(first.state_dict())
        for model in (first, second):
            set_gradients(model, step)
        first_optimizer.update(step)
    second_optimizer.update(3)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    names = set(assemble(first_optimizer.pieces()))
    assert "momentum.blocks.0.attn.qkv.weight" in names
    assert "exp_avg.blocks.0.attn.qkv.weight" not in names
    assert {"exp_avg.blocks.0.attn.qkv.bias", "exp_avg_sq.final_layer.linear.weight", "step"} <= names


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_of_a_different_optimizer_kind_is_rejected(kind):
    other = {"adamw": "muon", "muon": "adamw"}[kind]
    state = assemble(Optimizer.of_run(small_dit(), run_of(optimizer={"kind": other})).pieces())
    with pytest.raises(UserError, match=f"optimizer state(.|\n)*of {kind}"):
        Optimizer.of_run(small_dit(), run_of(optimizer={"kind": kind})).load(state)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
def test_matrix_owners_are_unique_and_work_is_balanced(ranks):
    matrices = matrices_of(shapes_of(small_dit()))
    owners = owners_of(matrices, ranks)
    assert owners.keys() == set(matrices)
    work = [sum(matrix.cost for matrix, owner in owners.items() if owner == rank) for rank in range(ranks)]
    dearest = max(matrix.cost for matrix in matrices)
    # Graham 1966: the last matrix was assigned to the least loaded rank
    assert max(work) <= sum(work) / ranks + dearest
    assert owners == owners_of(matrices, ranks)


class Cutter:
    """Stand-in for Zero: weights in one row of elements, of which each rank has a run."""

    def __init__(self, shapes, ranks):
        self.shapes, self.starts, end = shapes, {}, 0
        for name, shape in shapes.items():
            self.starts[name] = end
            end += math.prod(shape)
        self.cuts = [round(end * rank / ranks) for rank in range(ranks + 1)]

    def run_of(self, name, rank):
        begin, size = self.starts[name], math.prod(self.shapes[name])
        first, last = max(self.cuts[rank], begin), min(self.cuts[rank + 1], begin + size)
        return ElementRange(0, self.shapes[name], first - begin, last - first) if first < last else None


def ownership_cases():
    shapes = shapes_of(small_dit())
    cuts = {}
    for name in shapes:
        if name.endswith("qkv.weight"):
            cuts[name] = TensorSplit(0, 3)
        elif name.endswith(("proj.weight", "fc2.weight")) and name.startswith("blocks."):
            cuts[name] = TensorSplit(1)
        elif name.endswith("fc1.weight"):
            cuts[name] = TensorSplit(0)
    shards = TensorShards(group=None, rank=0, size=2, cuts=cuts)
    return [
        MatrixOwnership(1, 3),
        *(RunOwnership(0, ranks, span=ranks, sharded=Cutter(shapes, ranks)) for ranks in (2, 3, 50)),
        ShardOwnership(0, 4, span=2, shards=shards),
    ]


@pytest.mark.parametrize(
    "ownership", ownership_cases(), ids=lambda ownership: f"{type(ownership).__name__}-{ownership.size}"
)
def test_rank_parts_cover_every_matrix_exactly_once(ownership):
    shapes = shapes_of(small_dit())
    draws = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=draws) for name, shape in shapes.items()}

    def local(name: str, rank: int) -> torch.Tensor:
        if isinstance(ownership, RunOwnership):
            run = ownership.sharded.run_of(name, rank)
            return weights[name].reshape(-1)[run.start : run.start + run.count]
        cut = ownership.shards.cuts.get(name) if isinstance(ownership, ShardOwnership) else None
        return weights[name] if cut is None else cut.shard(weights[name], rank=rank % 2, size=2)

    for matrix in matrices_of(shapes):
        truth = weights[matrix.name][matrix.lines]
        parts = ownership.parts(matrix)
        for rank, part in parts.items():
            assert torch.equal(local(matrix.name, rank)[part.local], part.select(truth)), (matrix, rank)
        for owner in range(ownership.size):
            covered = torch.zeros(matrix.rows, matrix.columns)
            for source in ownership.sources(matrix, owner, parts):
                parts[source].select(covered).add_(1)
            assert (covered == 1).all(), (matrix, owner)


def test_complete_shapes_are_derived_from_shards():
    ownership = ownership_cases()[-1]
    assert ownership.shape("blocks.0.attn.qkv.weight", torch.empty(48, 32)) == (96, 32)
    assert ownership.shape("blocks.0.attn.proj.weight", torch.empty(32, 16)) == (32, 32)
    assert ownership.shape("blocks.0.adaLN_modulation.1.weight", torch.empty(192, 32)) == (192, 32)


def test_communication_without_a_reducer_is_reported_once_per_step():
    strategy = Strategy(small_dit(), RankGrid())
    assert strategy.finish() == {}
    for _ in range(2):
        meter = strategy.ownership().meter
        meter.sent(12)
        meter.wait(SimpleNamespace(wait=lambda: None, begun=1.0, ended=3.0))
        values = strategy.finish()
        assert (values["comm_bytes"], values["communication_seconds"]) == (12, 2.0)
        assert values["exposed_seconds"] > 0
        assert strategy.finish() == {}


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize(
        ("ranks", "scenes", "environment"),
        [
            (2, ("muon_sharded", "muon_alone", "muon_owned", "muon_resumed"), {}),
            (4, ("muon_alone", "muon_owned"), {}),
            (3, ("muon_owned", "muon_sharded"), {"DITHC_TEST_COMM": '{"collectives": "iallreduce"}'}),
            (2, ("muon_owned",), {"DITHC_COMM_BACKEND": "gloo"}),
        ],
    )
    def test_muon_matrix_ownership_preserves_training_on_ranks(self, ranks, scenes, environment):
        done = run_program(str(PROGRAM), ranks, str(ranks), *scenes, **environment)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {ranks} is done" for rank in range(ranks)]

    @pytest.mark.sampled("several ranks")
    @pytest.mark.parametrize(("ranks", "dies"), [(2, 1), (4, 2)])
    def test_tensor_parallel_muon_matches_single_rank_training(self, job, tmp_path, ranks, dies):
        half, settings = STEPS // 2, {"max_grad_norm": 0.1, **MUON}
        whole, shared = ten_steps(job, "one", **settings), ten_steps(job, "shared", strategy="dp+tp", **settings)
        first_half = ten_steps(job, "parts", until=half, strategy="dp+tp", **settings)
        train(whole, Group())
        done = train_on_ranks(tmp_path, [shared, first_half], ranks=ranks, dies=dies)
        assert done.returncode == 0, done.stderr
        resumed = ten_steps(job, "parts", **settings)
        train(resumed, Group())
        for found in (shared, resumed):
            assert_close(rows(found), rows(whole), tolerance=10 * FP32)
        truth = tensors_of(whole)
        for found in (tensors_of(shared), tensors_of(resumed)):
            assert {name: value.shape for name, value in found.items()} == {
                name: value.shape for name, value in truth.items()
            }
            for name in (name for name in truth if "momentum." in name):
                assert (found[name] - truth[name]).norm() < 0.01 * truth[name].norm(), name
