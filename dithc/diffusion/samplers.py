"""Diffusion samplers: generation of images from noise with a `denoise` callable, in a given number of steps.

Legend: N batch, C channels, S sampling steps. Steps run from S - 1 (most noise) to 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import user_error
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.noise import Noise, image_noise
from dithc.diffusion.objective import parts
from dithc.diffusion.sampler_check import exact_noise, validate_sampler
from dithc.diffusion.schedule import Schedule, Spacing

DEFAULT_ORDER = 2  # of the extrapolating solvers

OnStep = Callable[[int, int], None]
"""Callback after each step, with the number of finished steps and the total."""


@torch.no_grad()
def sample(
    kind: str | evaluations.PluginSampler,
    *,
    denoise: Denoise,
    schedule: Schedule,
    steps: int,
    shape: tuple[int, int, int],
    noise: Noise | Sequence[torch.Generator],
    order: int | None = None,
    times: Sequence[int] | None = None,
    clip: float | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """Draw images (N, C, height, width) in the dtype of the noise.

    Args:
        kind: Name in `SAMPLERS`, or a sampler of an installed package.
        denoise: (x (N, C, h, w), timesteps (N)) -> noise, or noise followed by the raw log variance (2C channels).
        schedule: Schedule of the training run; this function respaces it.
        steps: S, 1 to the length of the schedule.
        shape: (C, height, width) of an image.
        noise: A generator per image, or a function of the draw: 0 for the start, then k = 1.. for steps that add noise.
        order: Order of dpm-solver and unipc, 1 to 3, by default 2.
        times: S falling timesteps of the training run; by default the sampler chooses them.
        clip: Bound on the magnitude of the predicted clean image (pixels: 1); None for latents.
        on_step: Callback after each step.

    Raises:
        UserError: The kind is unknown or fails validation, an argument is out of range or belongs to another sampler, or
            the output has neither C nor 2C channels.
    """
    if isinstance(kind, str) and kind not in SAMPLERS:
        expected = " or ".join(SAMPLERS)
        raise user_error("unknown sampler", got=repr(kind), expected=expected, fix="name one of these samplers")
    sampler: Sampler | evaluations.PluginSampler = SAMPLERS[kind] if isinstance(kind, str) else _checked(kind)
    orders = evaluations.SAMPLER_SPECS[kind].orders if isinstance(kind, str) else kind.orders
    if order is not None and order not in orders:
        expected = " or ".join(str(value) for value in orders) or f"none with {kind}"
        raise user_error(
            "order of the solver", got=f"{order} with {kind}", expected=expected, fix="omit `solver_order`"
        )
    draw = noise if callable(noise) else image_noise(noise, shape)
    if times is not None and len(times) != steps:
        fix = "pass one timestep per step"
        raise user_error("timesteps to visit", got=len(times), expected=f"{steps}, one per step", fix=fix)
    if times is None:
        visited = schedule.respaced(steps, spacing=sampler.spacing)
    else:
        visited = schedule.visiting(list(reversed(times)))
    solver_order = order or DEFAULT_ORDER
    return sampler.run(SamplerContext(denoise, visited, draw, order=solver_order, clip=clip, on_step=on_step))


def _checked(solver: evaluations.PluginSampler) -> evaluations.PluginSampler:
    schedule = Schedule.linear()

    def run(predict: Denoise, noise: Noise, steps: int) -> object:
        return solver.run(SamplerContext(predict, schedule.respaced(steps, spacing=solver.spacing), noise))

    validate_sampler(solver, run, exact_noise(schedule))
    return solver


_Prediction = tuple[int, Tensor]
"""A step, and the clean image (N, C, h, w) predicted at it."""


@dataclass(frozen=True)
class SamplerContext:
    """State of a sampling run over a `schedule` of the visited steps, S - 1 (most noise) to 0.

    `noise` is the noise of a draw: 0 for the start, then k = 1.. for steps that add noise, each once and in order.
    """

    denoise: Denoise
    schedule: Schedule
    noise: Noise
    order: int = DEFAULT_ORDER
    clip: float | None = None
    on_step: OnStep | None = None

    def predict(self, x: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the predicted clean image and noise (N, C, h, w) and the rest of the output (N, 0 or C, h, w)."""
        timesteps = self.schedule.timesteps[step].to(x.device).expand(x.shape[0])  # (N)
        eps, tail = parts(self.denoise(x, timesteps).to(x.dtype), channels=x.shape[1])
        x0 = self.schedule.predict_x0(x, self.indices(x, step), eps)
        if self.clip is not None:
            x0 = x0.clamp(-self.clip, self.clip)
            alpha_bar = float(self.schedule.alpha_bar[step])
            eps = (x - math.sqrt(alpha_bar) * x0) / math.sqrt(1 - alpha_bar)
        return x0, eps, tail

    def indices(self, x: Tensor, step: int) -> Tensor:
        """Return the index of `step` in the schedule, for each image (N)."""
        return torch.full((x.shape[0],), step, device=x.device)

    def advance(self, x: Tensor, known: Sequence[_Prediction], *, following: _Prediction | None = None) -> Tensor:
        """Advance x (N, C, h, w) by one step from the clean images `known` at this and earlier steps, newest first.

        `following` is the prediction at the next step, if it was already visited.
        """
        levels = self.schedule.half_log_snr.tolist()
        (step, x0), *predictions = known
        length = levels[step - 1] - levels[step]
        predictions += [following] if following is not None else []
        offsets = [(levels[other] - levels[step]) / length for other, _ in predictions]
        mean = x0
        for weight, offset, (_, image) in zip(slope_weights(offsets, stride=length), offsets, predictions, strict=True):
            mean = mean + weight * ((image - x0) / offset)
        alpha_bar, alpha_bar_next = float(self.schedule.alpha_bar[step]), float(self.schedule.alpha_bar[step - 1])
        scale = math.sqrt(1 - alpha_bar_next) / math.sqrt(1 - alpha_bar)
        return scale * x - math.sqrt(alpha_bar_next) * math.expm1(-length) * mean

    def finished(self, step: int) -> None:
        """Report that `step` is done."""
        if self.on_step is not None:
            self.on_step(len(self.schedule) - step, len(self.schedule))


def ddpm(context: SamplerContext) -> Tensor:
    """Run ancestral sampling (Ho et al. 2020, algorithm 2), with the learned variance if it exists, else beta."""
    schedule, x = context.schedule, context.noise(0)
    for step in reversed(range(len(schedule))):
        x0, _, raw = context.predict(x, step)
        indices = context.indices(x, step)
        mean = schedule.posterior_mean(x0, x, indices)
        if step > 0:
            fixed = torch.ones_like(x) if raw.shape[1] == 0 else raw  # raw 1 means beta
            deviation = torch.exp(0.5 * schedule.learned_log_variance(fixed, indices))
            mean = mean + deviation * context.noise(len(schedule) - step).to(x.device)
        x = mean
        context.finished(step)
    return x


def ddim(context: SamplerContext) -> Tensor:
    """Run deterministic implicit sampling (Song et al. 2021, equation 12 with sigma 0)."""
    schedule, x = context.schedule, context.noise(0)
    for step in reversed(range(len(schedule))):
        x0, eps, _ = context.predict(x, step)
        alpha_bar = float(schedule.alpha_bar_before[step])
        x = math.sqrt(alpha_bar) * x0 + math.sqrt(1 - alpha_bar) * eps
        context.finished(step)
    return x


def dpm_solver(context: SamplerContext) -> Tensor:
    """Run multistep DPM-Solver++ (Lu et al. 2022; order 2 is algorithm 2, 2M), which extrapolates clean images.

    Order 3 integrates the polynomial through the last three images exactly, as the predictor of UniPC does.
    """
    return _multistep(context, corrects=False)


def unipc(context: SamplerContext) -> Tensor:
    """Run multistep UniPC (Zhao et al. 2023, section 3) with B(h) = exp(h) - 1, predicting the clean image.

    The prediction at the end of a step corrects the step, without a further evaluation of the network.
    """
    return _multistep(context, corrects=True)


def _multistep(context: SamplerContext, *, corrects: bool) -> Tensor:
    """Step through the clean images of the last `order` steps.

    The order rises over the first steps and falls over the last steps. The last step ends at the clean image, where the
    signal-to-noise ratio is infinite. With even spacing in time, the second-to-last stride would be ten times the
    stride that it extrapolates from.
    """
    x = previous = context.noise(0)
    history: list[_Prediction] = []  # newest first
    for step in reversed(range(len(context.schedule))):
        x0, _, _ = context.predict(x, step)
        if step == 0:
            x = x0
        else:
            if corrects and history:
                x = context.advance(previous, history, following=(step, x0))
            history = [(step, x0), *history][: min(context.order, step + 1)]
            previous, x = x, context.advance(x, history)
        context.finished(step)
    return x


def slope_weights(offsets: Sequence[float], *, stride: float) -> list[float]:
    """Return weights of the slopes (x0(r) - x0(0)) / r of clean images predicted at several noise levels.

    Let l be half the log of the signal-to-noise ratio and x0(l) the predicted clean image. Along the path to an image,

        x(l + h) = sigma' / sigma x(l) + alpha' (1 - exp(-h)) mean of x0 from l to l + h,

    where the mean has the weight exp(l) (Lu et al. 2022, proposition 4.1) and the linear part is exact. x0(0) plus the
    weighted sum of slopes is that mean over the stride h > 0, exact for polynomials of a degree up to the number of
    offsets. The weight of a single offset is 1/2, the limit for short strides, as in DPM-Solver++(2M) and UniPC with
    B(h) = exp(h) - 1. Offsets r, in strides, are distinct and nonzero: negative for earlier points of the path, 1 for
    the next.
    """
    if len(offsets) < 2:
        return [0.5] * len(offsets)
    mean, moments = -math.expm1(-stride), []
    moment = mean
    for degree in range(1, len(offsets) + 1):
        moment = 1 - degree / stride * moment  # integral of h exp((r - 1) h) r^degree from 0 to 1, by parts
        moments.append(moment / mean)
    powers = np.vander(offsets, increasing=True).T  # (degree - 1, offset)
    weights: list[float] = np.linalg.solve(powers, np.array(moments)).tolist()
    return weights


@dataclass(frozen=True)
class Sampler:
    """A sampler with its preferred spacing of timesteps."""

    run: Callable[[SamplerContext], Tensor]
    spacing: Spacing


SAMPLERS: Mapping[str, Sampler] = MappingProxyType(
    {
        "ddpm": Sampler(ddpm, spacing="time"),
        "ddim": Sampler(ddim, spacing="time"),
        "dpm-solver": Sampler(dpm_solver, spacing="snr"),
        "unipc": Sampler(unipc, spacing="snr"),
    }
)
