"""The training loss: squared error of the noise, plus the variational bound where the variance is learned.

Legend: N batch, C channels.
Source: Nichol & Dhariwal 2021, section 3.1, as DiT trains: loss = mse + vb, the bound in bits per dimension and unscaled.
"""

import math

import torch
from torch import Tensor

from dithc.diffusion.schedule import Schedule
from dithc.log import problem

# The bound's last term takes the data for 8-bit pixels scaled to [-1, 1]; for latents it is a convention, and kept so
# that losses compare with published ones.
HALF_BIN = 1 / 255
EDGE = 0.999
SMALLEST_LIKELIHOOD = 1e-12


def training_loss(
    output: Tensor, *, schedule: Schedule, x0: Tensor, x_t: Tensor, t: Tensor, noise: Tensor
) -> dict[str, Tensor]:
    """The loss of each sample.

    Args:
        output: what the network gave for x_t: (N, C, ...) noise, or (N, 2C, ...) noise and raw log variance.
        schedule: the training schedule, not a respaced one.
        x0: (N, C, ...), clean latents.
        x_t: (N, C, ...), `schedule.q_sample(x0, t, noise)`.
        t: (N) int, timesteps.
        noise: (N, C, ...), the noise in x_t.

    Returns:
        `loss`, `mse` and `vb`, each (N) fp32; loss = mse + vb, and vb is 0 where no variance is learned. The bound
        trains the variance only: the predicted mean in it is detached.

    Raises:
        UserError: output has neither C nor 2C channels.
    """
    channels = x0.shape[1]
    if output.shape[1] not in (channels, 2 * channels):
        expected = f"{channels}, or {2 * channels} with learned sigma"
        remedy = "build the model with in_channels equal to the channels of the latents"
        raise problem("channels of the model's output", got=output.shape[1], expected=expected, remedy=remedy)
    predicted = output[:, :channels].float()
    mse = per_sample_mean((noise.float() - predicted) ** 2)  # (N)
    if output.shape[1] == channels:
        return {"loss": mse, "mse": mse, "vb": torch.zeros_like(mse)}
    raw = output[:, channels:].float()
    vb = _bound(schedule, x0.float(), x_t.float(), t, predicted.detach(), raw)  # (N)
    return {"loss": mse + vb, "mse": mse, "vb": vb}


def _bound(schedule: Schedule, x0: Tensor, x_t: Tensor, t: Tensor, predicted: Tensor, raw: Tensor) -> Tensor:
    """The term of step t of the variational bound, in bits per dimension (N): a divergence, and at t = 0 a likelihood."""
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
    nats = torch.where(first, -_log_likelihood(x0, mean, log_variance), divergence)
    return per_sample_mean(nats) / math.log(2)


def _log_likelihood(x0: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Log probability of the 8-bit bin around x0 under a normal distribution; the outer bins are open."""
    inverse_std = torch.exp(-0.5 * log_variance)
    above = torch.special.ndtr((x0 + HALF_BIN - mean) * inverse_std)
    below = torch.special.ndtr((x0 - HALF_BIN - mean) * inverse_std)
    above = torch.where(x0 > EDGE, torch.ones_like(above), above)
    below = torch.where(x0 < -EDGE, torch.zeros_like(below), below)
    return torch.log((above - below).clamp(min=SMALLEST_LIKELIHOOD))


def per_sample_mean(x: Tensor) -> Tensor:
    """The mean over all but the first dimension (N)."""
    return x.flatten(1).mean(1)
