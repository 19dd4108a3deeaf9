"""Training objectives: the predicted quantity and the distribution of timesteps.

Legend: N batch, C channels, T steps of the schedule.
Sources: Ho et al. 2020 (noise); Liu et al. 2023, Ma et al. 2024 (the linear path of a flow); Esser et al. 2024 (logit-normal
times, section 3.1).
"""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import user_error
from dithc.diffusion.flow import TIME_SCALE
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.schedule import Schedule


class Objective(ABC):
    """Meaning of a network's output; `schedule` is None for a flow, `last` the timestep with the most noise."""

    schedule: Schedule | None
    last: float

    def __init__(self, settings: training.ObjectiveConfig) -> None:
        self._settings = settings

    @staticmethod
    def of(settings: training.ObjectiveConfig | None = None) -> "Objective":
        """Return the objective of a run; by default noise on the linear schedule with uniform times."""
        settings = settings or training.ObjectiveConfig()
        kinds: dict[str, type[Objective]] = {"noise": _Noise, "flow": _Flow}
        return kinds[settings.prediction_type](settings)

    def times(self, uniform: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        """Return timesteps (N) at quantiles in [0, 1): int64 in 0 .. T - 1; float32 in 0 .. 1000 for a flow."""
        if self._settings.timestep_sampling == "logit-normal":
            from scipy.special import expit, ndtri  # scipy takes as long as the rest of the package

            uniform = expit(self._settings.logit_mean + self._settings.logit_std * ndtri(uniform))
        return self._timesteps(uniform)

    @abstractmethod
    def _timesteps(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | npt.NDArray[np.float32]:
        """Convert shares of the way from image to noise to timesteps in the network's format."""

    @abstractmethod
    def noisy(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Return the noisy image x_t (N, C, ...) from clean latents x0, timesteps t (N) and standard normal noise.

        A flow also accepts a timestep for each channel (N, C).
        """

    @abstractmethod
    def target(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Return the regression target at t, in the shape of x0."""

    def hide(self, x_t: Tensor, noise: Tensor, visible: Tensor) -> Tensor:
        """Return noisy images (N, C, ...) with pure noise, as of the last timestep, outside `visible` (N, 1 or C, ...)."""
        return torch.where(visible, x_t, self.noisy(torch.zeros_like(noise), self.last_timesteps(noise), noise))

    def last_timesteps(self, x: Tensor) -> Tensor:
        """Return the timestep with the most noise for each image of x, (N)."""
        return torch.full((len(x),), int(self.last), device=x.device)

    @abstractmethod
    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return float64 a and s (N) of x_t = a x0 + s noise at timesteps t (N)."""

    @abstractmethod
    def clean(self, predicted: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Return the clean image (N, C, ...) in x (N, C, ...) at t (N), a linear function of the prediction."""

    def output_of(self, clean: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Return the prediction (N, C, ...) of a clean image, the inverse of `clean`; s must be above 0."""
        a, s = (part.to(x.dtype).reshape(-1, *(1,) * (x.dim() - 1)) for part in self.signal_and_noise(t))
        return self.target(clean, t, (x - a * clean) / s)

    def noise(self, predicted: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise (N, C, ...) in x (N, C, ...) at t (N), a linear function of the prediction."""
        return predicted

    @staticmethod
    def sampled(denoise: Denoise) -> Denoise:
        """Return the function that samplers integrate, in the dtype of x: noise and further channels, or a velocity.

        `denoise` maps x (N, C, ...), t (N) to the network's C or 2C channels; UserError for another number of channels.
        """

        def checked(x: Tensor, t: Tensor) -> Tensor:
            output = denoise(x, t).to(x.dtype)  # (N, C or 2C, ...)
            parts(output, channels=x.shape[1])
            return output

        return checked


class _Noise(Objective):
    schedule: Schedule

    def __init__(self, settings: training.ObjectiveConfig) -> None:
        super().__init__(settings)
        self.schedule = Schedule.linear()
        self.last = len(self.schedule) - 1

    def _timesteps(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        steps = (shares * len(self.schedule)).astype(np.int64)
        return np.minimum(steps, len(self.schedule) - 1)  # rounding may raise a share to 1

    def noisy(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        return self.schedule.q_sample(x0, t, noise)

    def target(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        return noise

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        share = self.schedule.alpha_bar.to(t.device)[t]
        return share.sqrt(), (1 - share).sqrt()

    def clean(self, predicted: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return self.schedule.predict_x0(x, t, predicted)


class _Flow(Objective):
    """Velocity noise - x0 of the straight path x_t = (1 - t) x0 + t noise; the network receives 1000 t."""

    schedule, last = None, TIME_SCALE

    def _timesteps(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        return (TIME_SCALE * shares).astype(np.float32)

    def noisy(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        return self._image_share(t, x0) * x0 + (1 - self._image_share(t, x0)) * noise

    def target(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        return noise - x0

    def noise(self, predicted: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return x + self._image_share(t, x) * predicted

    def signal_and_noise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        time = t.double() / TIME_SCALE
        return 1 - time, time

    def clean(self, predicted: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return x - (1 - self._image_share(t, x)) * predicted

    def _image_share(self, t: Tensor, reference: Tensor) -> Tensor:
        """Return 1 - time, the remaining share of the image (N, 1 or C, ...), from timesteps t (N) or (N, C)."""
        share = (1 - t.double() / TIME_SCALE).to(reference.dtype)
        return share.reshape(*t.shape, *(1,) * (reference.dim() - t.dim()))


def parts(output: Tensor, *, channels: int) -> tuple[Tensor, Tensor]:
    """Split an output into prediction (N, C, ...) and raw log variance (N, C or 0, ...), or raise UserError."""
    if output.shape[1] not in (channels, 2 * channels):
        expected = f"{channels}, or {2 * channels} with learned sigma"
        fix = "use latents with the channels of the model, in training and in sampling"
        raise user_error("channels of the model's output", got=output.shape[1], expected=expected, fix=fix)
    return output[:, :channels], output[:, channels:]
