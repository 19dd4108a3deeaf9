"""Tests of the training loss against a published value and its formulas."""

import math

import pytest
import torch
from torch import Tensor

from dithc.diffusion import Objective, Schedule, training_loss
from dithc.log import UserError

SCHEDULE, OBJECTIVE = Schedule.linear(), Objective.of()


def _case(t: Tensor, *, shape: tuple[int, ...] = (4, 8, 8)) -> dict[str, Tensor]:
    torch.manual_seed(3)
    x0, noise = torch.randn(2, len(t), *shape)
    return {"x0": x0, "noise": noise, "t": t, "x_t": SCHEDULE.q_sample(x0, t, noise)}


def _zero(case: dict[str, Tensor]) -> Tensor:
    return torch.zeros_like(torch.cat([case["x0"], case["x0"]], dim=1))


def test_untrained_model_on_random_latents_starts_at_1_0175() -> None:
    case = _case(torch.arange(1000).repeat(4), shape=(4, 16, 16))
    terms = training_loss(_zero(case), objective=OBJECTIVE, **case)
    assert terms["mse"].mean().item() == pytest.approx(1.0, abs=0.005)
    assert terms["loss"].mean().item() == pytest.approx(1.0175, abs=0.01)
    torch.testing.assert_close(terms["loss"], terms["mse"] + terms["vb"])
    assert terms["loss"].shape == (4000,)


def test_without_learned_sigma_the_loss_is_the_squared_error() -> None:
    case = _case(torch.tensor([0, 10, 999]))
    terms = training_loss(case["noise"] + 0.5, objective=OBJECTIVE, **case)
    torch.testing.assert_close(terms["loss"], torch.full((3,), 0.25))
    assert not terms["vb"].any()


def test_perfect_noise_and_least_variance_leave_no_divergence() -> None:
    case = _case(torch.tensor([1, 10, 500, 999]))
    output = torch.cat([case["noise"], torch.full_like(case["noise"], -1)], dim=1)
    terms = training_loss(output, objective=OBJECTIVE, **case)
    torch.testing.assert_close(terms["mse"], torch.zeros(4))
    torch.testing.assert_close(terms["vb"], torch.zeros(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("step", [1, 300, 999])
def test_bound_equals_the_divergence_of_two_normals(step: int) -> None:
    case = _case(torch.tensor([step]))
    raw = torch.rand_like(case["x0"]) * 2 - 1
    predicted = torch.randn_like(raw)
    terms = training_loss(torch.cat([predicted, raw], dim=1), objective=OBJECTIVE, **case)
    index = torch.tensor([step])
    model = torch.distributions.Normal(
        SCHEDULE.posterior_mean(SCHEDULE.predict_x0(case["x_t"], index, predicted), case["x_t"], index),
        torch.exp(0.5 * SCHEDULE.learned_log_variance(raw, index)),
    )
    true = torch.distributions.Normal(
        SCHEDULE.posterior_mean(case["x0"], case["x_t"], index),
        SCHEDULE.log_variance_small[step].mul(0.5).exp().float(),
    )
    expected = torch.distributions.kl_divergence(true, model).mean() / math.log(2)
    assert terms["vb"].item() == pytest.approx(expected.item(), rel=1e-3)


def test_last_term_is_the_likelihood_of_an_8_bit_bin() -> None:
    zero = torch.zeros(1, 1, 1, 1)
    case = {"x0": zero, "noise": zero, "t": torch.tensor([0]), "x_t": zero}
    terms = training_loss(torch.zeros(1, 2, 1, 1), objective=OBJECTIVE, **case)
    deviation = math.exp(0.25 * (SCHEDULE.log_variance_small[0] + SCHEDULE.log_variance_large[0]).item())
    expected = -math.log2(math.erf(1 / 255 / deviation / math.sqrt(2)))
    assert terms["vb"].item() == pytest.approx(expected, rel=1e-4)


def test_bound_trains_the_variance_and_never_the_mean() -> None:
    case = _case(torch.tensor([0, 1, 500, 999]))
    output = torch.randn(4, 8, 8, 8, requires_grad=True)
    training_loss(output, objective=OBJECTIVE, **case)["vb"].sum().backward()
    assert output.grad is not None
    assert not output.grad[:, :4].any()
    assert output.grad[1:, 4:].any(dim=(1, 2, 3)).all()
    assert output.grad.isfinite().all()


def test_bf16_output_is_weighed_in_fp32() -> None:
    case = _case(torch.tensor([0, 700]))
    output = torch.randn(2, 8, 8, 8).bfloat16()
    terms = training_loss(output, objective=OBJECTIVE, **case)
    exact = training_loss(output.float(), objective=OBJECTIVE, **case)
    assert terms["loss"].dtype == torch.float32
    assert torch.equal(terms["loss"], exact["loss"])


def test_loss_of_a_sample_does_not_depend_on_the_others() -> None:
    case = _case(torch.tensor([0, 40, 999]))
    output = torch.randn(3, 8, 8, 8)
    whole = training_loss(output, objective=OBJECTIVE, **case)["loss"]
    for row in range(3):
        cut = {key: value[row : row + 1] for key, value in case.items()}
        alone = training_loss(output[row : row + 1], objective=OBJECTIVE, **cut)["loss"]
        torch.testing.assert_close(alone[0], whole[row])


def test_output_of_other_channels_is_refused() -> None:
    with pytest.raises(UserError, match="4, or 8 with learned sigma"):
        training_loss(torch.zeros(1, 5, 8, 8), objective=OBJECTIVE, **_case(torch.tensor([3])))
