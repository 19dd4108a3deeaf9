"""The noise schedule: the remaining share of the image at each step, and the posterior of the reverse step.

Legend: N batch, C channels, S steps of the schedule. `alpha_bar` is the product of (1 - beta) up to a step.
Sources: Ho et al. 2020 (equations 4, 6, 7); Nichol & Dhariwal 2021 (section 3.1 and 3.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import torch
from torch import Tensor

from dithc.core.logging import user_error

Spacing = Literal["time", "snr"]
NUM_STEPS = 1000


@dataclass(frozen=True, eq=False)
class Schedule:
    """Tables of a diffusion process.

    `alpha_bar` (S) is float64, falling, in (0, 1); `timesteps` (S) of the training run are int64, rising.
    """

    alpha_bar: Tensor
    timesteps: Tensor

    @classmethod
    def linear(cls) -> Self:
        """Return 1000 steps with betas from 1e-4 to 2e-2 in equal increments (Ho et al., section 4)."""
        betas = torch.linspace(1e-4, 2e-2, NUM_STEPS, dtype=torch.float64)
        return cls(torch.cumprod(1 - betas, dim=0), torch.arange(NUM_STEPS))

    def __len__(self) -> int:
        return len(self.timesteps)

    def respaced(self, steps: int, *, spacing: Spacing = "time") -> Self:
        """Return the schedule of `steps` timesteps from the first to the last; a single step visits the last timestep.

        `spacing` is even in "time", or in the log of the signal-to-noise ratio ("snr") as far as integer timesteps
        allow, for extrapolating solvers. Raises UserError for no steps or more steps than this schedule has.
        """
        if not 1 <= steps <= len(self):
            fix = "choose a number of sampling steps in this range"
            raise user_error("sampling steps", got=steps, expected=f"1 to {len(self)}", fix=fix)
        last = len(self) - 1
        if steps == 1:
            visited = [last]
        elif spacing == "time":
            visited = [round(index * last / (steps - 1)) for index in range(steps)]
        else:
            visited = self._even_in_snr(steps)
        return self.visiting(visited)

    def visiting(self, steps: Sequence[int]) -> Self:
        """Return the schedule of the given rising steps; raise UserError for empty, unknown or falling steps."""
        rising = sorted(set(steps))
        if not rising or rising != list(steps) or rising[0] < 0 or rising[-1] >= len(self):
            expected = f"at least one of 0 to {len(self) - 1}, each once and in order"
            raise user_error(
                "timesteps to visit", got=list(steps), expected=expected, fix="pass timesteps of this range"
            )
        return type(self)(self.alpha_bar[rising], self.timesteps[rising])

    def _even_in_snr(self, steps: int) -> list[int]:
        rising = -self.half_log_snr
        levels = torch.linspace(float(rising[0]), float(rising[-1]), steps, dtype=torch.float64)
        visited: list[int] = []
        for index, level in enumerate(levels):
            nearest = int((rising - level).abs().argmin())
            lowest = visited[-1] + 1 if visited else 0  # visit each timestep once
            highest = len(self) - steps + index  # leave enough timesteps for the levels to come
            visited.append(min(max(nearest, lowest), highest))
        return visited

    @cached_property
    def half_log_snr(self) -> Tensor:
        """Half log signal-to-noise ratio (S), falling; the lambda of the DPM-Solver papers."""
        return 0.5 * torch.log(self.alpha_bar / (1 - self.alpha_bar))

    @cached_property
    def alpha_bar_before(self) -> Tensor:
        """`alpha_bar` of the previous step (S); 1 (the clean image) before the first."""
        return torch.cat([torch.ones(1, dtype=torch.float64), self.alpha_bar[:-1]])

    @cached_property
    def betas(self) -> Tensor:
        """Variance of the noise that each step adds (S)."""
        return 1 - self.alpha_bar / self.alpha_bar_before

    @cached_property
    def log_variance_small(self) -> Tensor:
        """Log variance of q(x_before | x, x_0) (S), the minimum of a reverse step.

        Entry 0 repeats entry 1, because its true value is log 0 (no noise is added there).
        """
        variance = self.betas * (1 - self.alpha_bar_before) / (1 - self.alpha_bar)
        first = variance[1:2] if len(self) > 1 else self.betas[:1]
        return torch.log(torch.cat([first, variance[1:]]))

    @cached_property
    def posterior_weights(self) -> tuple[Tensor, Tensor]:
        """Weights of x_0 and of x in the mean of q(x_before | x, x_0), (S) each (Ho et al., equation 7)."""
        of_x0 = self.betas * self.alpha_bar_before.sqrt() / (1 - self.alpha_bar)
        of_x = (1 - self.alpha_bar_before) * (1 - self.betas).sqrt() / (1 - self.alpha_bar)
        return of_x0, of_x

    def q_sample(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Return sqrt(alpha_bar) x0 + sqrt(1 - alpha_bar) noise for x0 and noise (N, ...) and steps t (N) int."""
        return pick(self.alpha_bar.sqrt(), t, x0) * x0 + pick((1 - self.alpha_bar).sqrt(), t, x0) * noise

    def predict_x0(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Return the clean image that `noise` turns into x at step t; the inverse of `q_sample`."""
        return pick(self.alpha_bar.rsqrt(), t, x) * x - pick((1 / self.alpha_bar - 1).sqrt(), t, x) * noise

    def posterior_mean(self, x0: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Return the mean of q(x_before | x, x_0) at step t."""
        of_x0, of_x = self.posterior_weights
        return pick(of_x0, t, x) * x0 + pick(of_x, t, x) * x

    def learned_log_variance(self, raw: Tensor, t: Tensor) -> Tensor:
        """Return the log variance of a network's raw output: -1 is the minimum, 1 the maximum (N & D, equation 15)."""
        share = (raw + 1) / 2
        return share * pick(torch.log(self.betas), t, raw) + (1 - share) * pick(self.log_variance_small, t, raw)


def pick(table: Tensor, t: Tensor, reference: Tensor) -> Tensor:
    """Return entries t (N) of a float64 table (S), in the dtype of `reference` (N, ...) and shaped to multiply it."""
    entries = table.to(t.device)[t].to(reference.dtype)  # (N)
    return entries.reshape(-1, *(1,) * (reference.dim() - 1))  # (N, 1, ...)
