"""The training loss: squared error of the prediction, plus the variational bound if the variance is learned.

Legend: N batch, C channels.
Source: Nichol & Dhariwal 2021, section 3.1, as DiT trains: loss = mse + vb, the bound in bits per dimension and unscaled.
"""

import math

import torch
from torch import Tensor

from dithc.diffusion.objective import Objective, parts
from dithc.diffusion.schedule import Schedule

# The last term of the bound assumes 8-bit pixels scaled to [-1, 1]. Latents keep this convention, so that losses
# compare with published values.
HALF_BIN = 1 / 255
EDGE = 0.999
SMALLEST_LIKELIHOOD = 1e-12


def training_loss(
    output: Tensor,
    *,
    objective: Objective,
    x0: Tensor,
    x_t: Tensor,
    t: Tensor,
    noise: Tensor,
    offset: Tensor | None = None,
    visible: Tensor | None = None,
    weight: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return `loss`, `mse` and `vb` of each sample, (N) fp32.

    Args:
        output: Network output for x_t: prediction (N, C, ...), or (N, 2C, ...) followed by the raw log variance.
        objective: Target and weight of the prediction.
        x0: (N, C, ...), clean latents, as x_t = `objective.noisy(x0, t, noise)` and `noise` in shape.
        t: (N), timesteps.
        offset: (N, C, ...), added to the target of the prediction (see `GaussianPrediction.hidden_offset`), not of the variance.
        visible: (N, 1 or C, ...), pixels of x0 in x_t; `objective.hide` sets the other pixels and their timestep.
        weight: (N, 1 or C, ...), weights of pixels. The variance counts in visible pixels only.

    Returns:
        loss = mse + vb. vb is 0 without learned variance. It trains the variance only, because its predicted mean is
        detached.

    Raises:
        UserError: The output has neither C nor 2C channels.
    """
    predicted, raw = (part.float() for part in parts(output, channels=x0.shape[1]))
    x0, x_t, noise = x0.float(), x_t.float(), noise.float()
    target = objective.target(x0, t, noise)  # (N, C, ...)
    if visible is not None:
        target = torch.where(visible, target, objective.target(x0, objective.last_timesteps(x0), noise))
    if offset is not None:
        target = target + offset
    mse = per_sample_mean(_weighted((target - predicted) ** 2, weight))  # (N)
    if not raw.shape[1]:
        return {"loss": mse, "mse": mse, "vb": torch.zeros_like(mse)}
    assert objective.schedule is not None, "a flow learns no variance"
    predicted_noise = objective.noise(predicted.detach(), x_t, t)
    nats = _bound(objective.schedule, x0, x_t, t, predicted_noise, raw)  # (N, C, ...)
    vb = per_sample_mean(_weighted(nats, weight, visible)) / math.log(2)  # (N)
    return {"loss": mse + vb, "mse": mse, "vb": vb}


def _bound(schedule: Schedule, x0: Tensor, x_t: Tensor, t: Tensor, predicted: Tensor, raw: Tensor) -> Tensor:
    """Return term t of the variational bound in nats (N, C, ...): a divergence, and at t = 0 a likelihood."""
    mean = schedule.posterior_mean(schedule.predict_x0(x_t, t, predicted), x_t, t)
    log_variance = schedule.learned_log_variance(raw, t)
    true_mean = schedule.posterior_mean(x0, x_t, t)
    true_log_variance = schedule.learned_log_variance(torch.full_like(raw, -1), t)
    divergence = 0.5 * (
        log_variance
        - true_log_variance
        - 1
        + torch.exp(true_log_variance - log_variance)
        + (true_mean - mean) ** 2 * torch.exp(-log_variance)
    )
    first = (t == 0).reshape(-1, *(1,) * (x0.dim() - 1))
    return torch.where(first, -_log_likelihood(x0, mean, log_variance), divergence)


def _log_likelihood(x0: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the log probability of the 8-bit bin around x0 under a normal distribution; the outer bins are open."""
    inverse_std = torch.exp(-0.5 * log_variance)
    upper = torch.special.ndtr((x0 + HALF_BIN - mean) * inverse_std)
    lower = torch.special.ndtr((x0 - HALF_BIN - mean) * inverse_std)
    upper = torch.where(x0 > EDGE, torch.ones_like(upper), upper)
    lower = torch.where(x0 < -EDGE, torch.zeros_like(lower), lower)
    return torch.log((upper - lower).clamp(min=SMALLEST_LIKELIHOOD))


def _weighted(values: Tensor, *weights: Tensor | None) -> Tensor:
    for weight in weights:
        values = values if weight is None else values * weight
    return values


def per_sample_mean(x: Tensor) -> Tensor:
    """Return the mean (N) over all dimensions except the first."""
    return x.flatten(1).mean(1)
