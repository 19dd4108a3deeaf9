"""Tests of the individual parts of training."""

import math
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dithc.config import training
from dithc.core.logging import UserError
from dithc.engine.comm import Group
from dithc.train.job import EXIT_SECONDS, MIN_TIMEOUT, StepTimer, StopRequests, seconds_since_process_start
from dithc.train.optimizer.ema import Ema, decay_at, initial_weight_fraction
from dithc.train.optimizer.optimizer import Optimizer, learning_rate_at
from dithc.train.step.step import Trainer, micro_batches
from dithc.train.strategies.layout import RankGrid


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_interval_of_checkpoints_minimizes_the_expected_loss():
    timer = StepTimer()
    assert timer.save_interval(3600.0) is None
    timer.stall(0.5, write_seconds=4.0)

    def loss(seconds):
        return 0.5 / seconds + seconds / (2 * 3600.0)  # per second of training

    best = timer.save_interval(3600.0)
    assert best == pytest.approx(60.0)
    assert loss(best) < min(loss(best / 1.1), loss(best * 1.1))
    assert timer.save_interval(1.0) == 8.0, "twice the time to write the files"


def test_ema_decay_warms_up_to_the_final_value():
    assert decay_at(1, decay=0.9999, warmup=True) == pytest.approx(2 / 11)
    assert decay_at(10**6, decay=0.9999, warmup=True) == 0.9999
    assert decay_at(1, decay=0.9999, warmup=False) == 0.9999
    assert initial_weight_fraction(1000, decay=0.9999, warmup=False) == pytest.approx(math.exp(-0.1), rel=1e-3)
    assert initial_weight_fraction(1000, decay=0.9999, warmup=True) < 1e-20


def test_ema_follows_trained_weights_and_preserves_frozen_weights():
    model = net()
    model[0].weight.requires_grad_(False)
    ema = Ema(model, training.EmaConfig(decay=0.5, warmup=False))
    before = {name: value.clone() for name, value in ema.state.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    assert ema.decay(1) == 0.5
    Optimizer.of_run(model, training.RunConfig(dataset="toy", weight_decay=0.0)).update(1, ema=ema)
    assert torch.equal(ema.state["0.weight"], before["0.weight"])
    assert torch.allclose(ema.state["1.weight"], before["1.weight"] + 0.5)


def test_learning_rate_warms_up_linearly_and_stays_constant():
    rates = [learning_rate_at(step, training.RunConfig(dataset="toy", lr=1.0, warmup_steps=4)) for step in (1, 2, 4, 5)]
    assert rates == [0.25, 0.5, 1.0, 1.0]
    assert learning_rate_at(1, training.RunConfig(dataset="toy", lr=1.0)) == 1.0


def test_automatic_learning_rate_falls_with_the_width_and_rises_with_the_square_root_of_the_batch():
    def rate(width: int, batch: int) -> float:
        model = {"preset": "DiT-S/2", "hidden_size": width, "num_heads": 4}
        settings = {"objective": {"prediction_type": "flow"}, "model": model | {"learn_sigma": False}}
        run = training.RunConfig(dataset="toy", lr="auto", global_batch_size=batch, warmup_steps=2, **settings)
        assert learning_rate_at(1, run) == learning_rate_at(2, run) / 2
        return learning_rate_at(2, run)

    assert [rate(256, 32), rate(128, 32), rate(128, 128)] == [0.5 / 256, 0.5 / 128, 1.0 / 128]


SCHEDULED = {"dataset": "toy", "lr": 0.8, "steps": 100}


@pytest.mark.parametrize("share", [0.2, 0.35, 0.9])
def test_trapezoid_schedule_is_constant_then_decays_linearly_to_zero(share):
    run = training.RunConfig(**SCHEDULED, warmup_steps=10, lr_schedule="trapezoid", decay_fraction=share)
    rates = [learning_rate_at(step, run) for step in range(1, 101)]
    edge = round(100 * (1 - share))
    assert rates[9 : edge - 1] == pytest.approx([0.8] * (edge - 10))
    assert rates[edge - 1 :] == pytest.approx([0.8 * (100 - step) / (100 * share) for step in range(edge, 101)])
    assert rates[-1] == 0.0


def test_trapezoid_schedule_accepts_a_single_step_and_a_full_decay_fraction():
    assert learning_rate_at(1, training.RunConfig(dataset="toy", steps=1, lr_schedule="trapezoid")) == 0.0
    whole = training.RunConfig(**SCHEDULED, lr_schedule="trapezoid", decay_fraction=1.0)
    assert learning_rate_at(25, whole) == pytest.approx(0.6)


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
def test_every_backend_matches_torch_adamw_steps(backend, use_backend):
    use_backend(backend)
    settings = training.RunConfig(
        dataset="toy", lr=0.1, betas=[0.7, 0.95], weight_decay=0.01, max_grad_norm=0.5, warmup_steps=0
    )
    model, reference = net(), net()
    optimizer = Optimizer.of_run(model, settings)
    torch_optimizer = torch.optim.AdamW(reference.parameters(), lr=0.1, betas=(0.7, 0.95), weight_decay=0.01)
    x = torch.randn(5, 3)
    for step in (1, 2, 3):
        optimizer.zero_grad()
        torch_optimizer.zero_grad()
        model(x).square().mean().backward()
        reference(x).square().mean().backward()
        norm = float(nn.utils.clip_grad_norm_(reference.parameters(), 0.5))
        assert optimizer.clip() == pytest.approx(norm, rel=1e-5)
        optimizer.update(step)
        torch_optimizer.step()
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("clip", "value", "is_accepted"),
    [(None, 1e18, True), (None, 1e20, False), (1.0, 1e20, True), (1.0, math.inf, False)],
)
def test_gradients_with_squares_beyond_fp32_are_rejected(clip, value, is_accepted):
    model = nn.Linear(2, 2, bias=False)
    optimizer = Optimizer.of_run(model, training.RunConfig(dataset="toy", max_grad_norm=clip))
    model.weight.grad = torch.full((2, 2), value)
    assert optimizer.clip() == pytest.approx(2 * value)
    assert optimizer.accepts(2 * value) is is_accepted
    if is_accepted:
        optimizer.update(1)
        assert all(moment.isfinite().all() for moment in optimizer.state().values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signal_requests_a_stop_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    with StopRequests() as stop:
        assert stop.reason(grace_seconds=None) is None
        os.kill(os.getpid(), number)
        assert stop.reason(grace_seconds=None) == f"signal {number.name}"
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_walltime_counts_from_process_start():
    age_minutes = seconds_since_process_start() / 60
    assert age_minutes > 0
    stop = StopRequests(walltime_minutes=age_minutes + 10)
    assert stop.reason(grace_seconds=5) is None
    assert "s of the walltime left" in str(stop.reason(grace_seconds=700))
    assert stop.reason(grace_seconds=None) is None


def test_grace_time_follows_the_slowest_recent_step_save_and_validation():
    timer = StepTimer()
    assert timer.grace_seconds == EXIT_SECONDS
    for seconds in [9.0] + [1.0] * 19 + [2.0]:
        timer.step(seconds)
    for seconds in (3.0, 0.5):
        timer.save(seconds)
    for seconds in (30.0, 20.0):
        timer.validation(seconds)
    assert timer.grace_seconds == 2 * (2.0 + 30.0) + 2 * 3.0 + EXIT_SECONDS


def test_timeout_is_five_times_the_longest_step_and_at_least_a_minute():
    timer = StepTimer()
    timer.save(100.0)
    assert timer.timeout_seconds() is None
    timer.step(11.9)
    assert timer.timeout_seconds() == MIN_TIMEOUT == 60.0
    for seconds in [30.0] + [1.0] * 40:
        timer.step(seconds)
    assert timer.timeout_seconds() == 5 * 30.0
    assert timer.timeout_seconds(saving=True) == 600.0
    timer.save(200.0)
    assert timer.timeout_seconds(saving=True) == 5 * 200.0


def test_more_ranks_than_images_are_rejected():
    run = training.RunConfig(dataset="toy", global_batch_size=2)
    group = Group(rank=0, size=3)
    with pytest.raises(UserError, match="3 ranks for a global batch of 2"):
        Trainer(
            run=run, source=None, state=SimpleNamespace(strategy=SimpleNamespace(layout=RankGrid(size=3))), group=group
        )


@pytest.mark.parametrize(
    ("images", "width", "lengths"),
    [((0, 42), 32, [10, 32]), ((7, 9), 1, [1, 1]), ((8, 16), 8, [8]), ((5, 10), 2, [1, 2, 2]), ((3, 4), 8, [1])],
)
def test_micro_batches_cover_the_images_in_order_with_the_remainder_first(images, width, lengths):
    parts = micro_batches(*images, width)
    assert [part.stop - part.start for part in parts] == lengths
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(*images))
