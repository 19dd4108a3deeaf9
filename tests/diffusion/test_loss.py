"""Tests of the training loss against a published value and its formulas."""

import math

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.diffusion import Objective, Schedule, training_loss

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
    deviation = math.exp(0.25 * (SCHEDULE.log_variance_small[0] + SCHEDULE.betas[0].log()).item())
    expected = -math.log2(math.erf(1 / 255 / deviation / math.sqrt(2)))
    assert terms["vb"].item() == pytest.approx(expected, rel=1e-4)


def test_loss_of_bf16_output_is_computed_in_fp32() -> None:
    case = _case(torch.tensor([0, 700]))
    output = torch.randn(2, 8, 8, 8).bfloat16()
    terms = training_loss(output, objective=OBJECTIVE, **case)
    exact = training_loss(output.float(), objective=OBJECTIVE, **case)
    assert terms["loss"].dtype == torch.float32
    assert torch.equal(terms["loss"], exact["loss"])


def test_output_with_wrong_channels_is_rejected() -> None:
    with pytest.raises(UserError, match="4, or 8 with learned sigma"):
        training_loss(torch.zeros(1, 5, 8, 8), objective=OBJECTIVE, **_case(torch.tensor([3])))
