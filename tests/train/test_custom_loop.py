"""Tests of user-defined modules in custom loops: gradients of the joined batch, bitwise ZeRO-1 and resume, misuse."""

import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import UserError
from dithc.engine.comm import Group
from dithc.train import CheckpointManager, Optimizer, Strategy
from tests.engine.comm.test_group import run_program
from tests.train.custom_loop_program import SCENES, LanguageModel, batch_of, build, loss_of
from tests.train.strategies.test_strategies import several_ranks

PROGRAM = Path(__file__).with_name("custom_loop_program.py")


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    def test_user_defined_modules_train_correctly_on_two_ranks(self, tmp_path):
        done = run_program(str(PROGRAM), 2, "2", str(tmp_path), *SCENES)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 is done", "rank 1 of 2 is done"]


def train_model(folder: Path, *, until: int, stop_at: int = 0) -> tuple[nn.Module, CheckpointManager]:
    """Return a model that one process has trained up to a step, or until a stop request."""
    strategy = Strategy(build(LanguageModel), Group())
    model = strategy.prepare(batch_of(strategy.model, 0)[0])
    optimizer = Optimizer(strategy, lr=lambda step: 1e-2 / step)
    with CheckpointManager(folder, Group(), optimizer, every=2) as checkpoints:
        for step in range(checkpoints.step + 1, until + 1):
            tokens, expected = batch_of(model, step)
            strategy.backward(loss_of(model(tokens), expected))
            assert optimizer.step()["lr"] == 1e-2 / step
            if step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            if not checkpoints.after(step):
                break
    return model, checkpoints


def test_stopped_custom_training_saves_and_resumes_bit_exactly(tmp_path):
    whole, done = train_model(tmp_path / "whole", until=5)
    assert (done.step, done.status) == (5, 0)
    assert CheckpointStore(tmp_path / "whole").steps() == [4, 5]
    _, stopped = train_model(tmp_path / "parts", until=5, stop_at=3)
    assert (stopped.step, stopped.status) == (3, 75)
    model, ended = train_model(tmp_path / "parts", until=5)
    assert (ended.step, ended.status) == (5, 0)
    for one, two in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, two)


def fail_after_a_save(folder: Path) -> None:
    """Run three steps, of which the second is saved, and raise an error."""
    optimizer = Optimizer(Strategy(nn.Linear(2, 1)))
    with CheckpointManager(folder, Group(), optimizer, every=2) as checkpoints:
        for step in range(1, 4):
            optimizer.strategy.backward(optimizer.strategy.module(torch.ones(1, 2)).sum())
            optimizer.step()
            checkpoints.after(step)
        raise RuntimeError("of its own")


def test_failing_training_block_raises_without_a_further_checkpoint(tmp_path):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="of its own"):
            fail_after_a_save(tmp_path)
        assert 3 not in CheckpointStore(tmp_path).steps()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Optimizer(nn.Linear(2, 1), betas=(0.9, 1.0)), "betas"),
        (lambda: Optimizer(nn.Linear(2, 1), clip=0.0), "clip"),
        (lambda: Optimizer(nn.Linear(2, 1)).step(), "no gradient of any parameter"),
        (lambda: CheckpointManager("store", Group(), Optimizer(nn.Linear(2, 1)), every=0), "every 0"),
    ],
)
def test_invalid_api_use_in_a_single_process_is_rejected(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_nonfinite_gradients_are_rejected_and_weights_are_preserved():
    optimizer = Optimizer(model := nn.Linear(2, 1))
    before = model.weight.clone()
    optimizer.strategy.backward(model(torch.tensor([[torch.inf, 1.0]])).sum())
    with pytest.raises(UserError, match="gradients of update 1"):
        optimizer.step()
    assert torch.equal(model.weight, before)


class Odd(nn.Module):
    def __init__(self, *types: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        for dtype in types:
            self.register_buffer(str(dtype).removeprefix("torch."), torch.arange(3).to(dtype))


def odd(folder: Path, *types: torch.dtype) -> tuple[nn.Module, CheckpointManager]:
    strategy = Strategy(Odd(*types), Group())
    model = strategy.model
    model.forward = lambda x: model.layer(x)
    strategy.prepare(torch.ones(1, 2))
    return model, CheckpointManager(folder, Group(), Optimizer(strategy, lr=0.1), every=1)


def test_buffers_of_unusual_dtypes_are_restored_exactly(tmp_path):
    types = (torch.complex64, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2)
    model, checkpoints = odd(tmp_path, *types)
    with checkpoints:
        model.complex64.mul_(1j)
        checkpoints.after(1)
    again, checkpoints = odd(tmp_path, *types)
    with checkpoints:
        assert checkpoints.step == 1
        for name, buffer in model.named_buffers():
            found = again.get_buffer(name)
            assert found.dtype is buffer.dtype
            assert torch.equal(found.view(torch.uint8), buffer.view(torch.uint8))


def test_unserializable_buffer_is_rejected_before_the_first_step(tmp_path):
    with pytest.raises(UserError, match=r"complex128 of torch.complex128[\s\S]*persistent=False"):
        odd(tmp_path, torch.complex128)
