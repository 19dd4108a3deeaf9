"""Flow samplers: integration of the velocity from noise (time 1) to an image (time 0).

Legend: N batch, C channels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import user_error
from dithc.diffusion.guidance import Denoise
from dithc.diffusion.noise import Noise, image_noise
from dithc.diffusion.sampler_check import exact_velocity, validate_sampler

# The network receives times of [0, 1] on the timestep scale of a diffusion, for which its embedding is designed.
TIME_SCALE = 1000.0


@torch.no_grad()
def sample_flow(
    kind: str | evaluations.PluginSampler,
    *,
    velocity: Denoise,
    steps: int,
    shape: tuple[int, int, int],
    noise: Noise | Sequence[torch.Generator],
    times: Sequence[float] | None = None,
    clip: float | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Draw images (N, C, height, width) in the dtype of the noise; equal noise gives equal images.

    Args:
        kind: Name in `FLOW_SAMPLERS`, or a sampler of an installed package.
        velocity: (x (N, C, h, w), 1000 times the time (N) fp32) -> noise - image (N, C, h, w).
        steps: Evaluations of the velocity, all used. euler needs one per interval, heun two; with an odd number, the
            last interval of heun is an Euler step.
        shape: (C, height, width) of an image.
        noise: A generator per image, or a function of the draw, 0 for the start.
        times: 1000 times the start of each interval, falling from 1000 (noise); the last ends at 0. Equal intervals by
            default.
        clip: Bound on the magnitude of the predicted clean image (pixels: 1); None for latents.
        on_step: Callback after each evaluation, with their number and the total.

    Raises:
        UserError: The kind is unknown or fails validation, steps or times are invalid, or the output does not have C
            channels.
    """
    if isinstance(kind, str) and kind not in FLOW_SAMPLERS:
        expected = " or ".join(FLOW_SAMPLERS)
        raise user_error("unknown flow sampler", got=repr(kind), expected=expected, fix="name one of these samplers")
    if steps < 1:
        raise user_error("sampling steps", got=steps, expected="1 or more", fix="choose more sampling steps")
    draw = noise if callable(noise) else image_noise(noise, shape)
    context = FlowContext(velocity, steps, draw, times=times, clip=clip, on_step=on_step)
    if not isinstance(kind, str):
        validate_sampler(
            kind, lambda predict, noise, steps: kind.run(FlowContext(predict, steps, noise)), exact_velocity
        )
    x = (FLOW_SAMPLERS[kind] if isinstance(kind, str) else kind.run)(context)
    return x if clip is None else x.clamp(-clip, clip)


@dataclass
class FlowContext:
    """State of a flow sampling run; counts the evaluations, `steps` in total."""

    velocity: Denoise
    steps: int
    noise: Noise
    times: Sequence[float] | None = None
    clip: float | None = None
    on_step: Callable[[int, int], None] | None = None
    done: int = 0

    def intervals(self, count: int) -> list[tuple[float, float]]:
        """Return intervals from time 1 to time 0: those that start at `times`, or equal intervals."""
        if self.times is None:
            return [(1 - index / count, 1 - (index + 1) / count) for index in range(count)]
        edges = [*self.times, 0]
        if len(self.times) != count or edges[0] != TIME_SCALE or any(start <= stop for start, stop in pairwise(edges)):
            expected = f"{count}, falling from {TIME_SCALE:g} and above 0"
            fix = "pass one time per interval, or omit `times`"
            raise user_error("start times of the intervals", got=list(self.times), expected=expected, fix=fix)
        return [(start / TIME_SCALE, stop / TIME_SCALE) for start, stop in pairwise(edges)]

    def at(self, x: Tensor, time: float) -> Tensor:
        """Return the velocity at x (N, C, h, w) and a time in [0, 1], towards noise."""
        output = self.velocity(x, torch.full((x.shape[0],), TIME_SCALE * time, device=x.device)).to(x.dtype)
        if output.shape != x.shape:
            fix = "sample in the shape of the training latents, with a model without learned sigma"
            raise user_error("channels of the model's output", got=output.shape[1], expected=x.shape[1], fix=fix)
        self.done += 1
        if self.on_step is not None:
            self.on_step(self.done, self.steps)
        if self.clip is None or time == 0:
            return output
        return (x - (x - time * output).clamp(-self.clip, self.clip)) / time


def euler(context: FlowContext) -> Tensor:
    """Integrate by Euler's method (first order): the velocity at the start of each interval."""
    x = context.noise(0)
    for start, stop in context.intervals(context.steps):
        x = x - (start - stop) * context.at(x, start)
    return x


def heun(context: FlowContext) -> Tensor:
    """Integrate by Heun's method (second order): the mean of the velocities at both ends of each interval.

    A single Euler interval at the end, for an odd number of evaluations, keeps this order.
    """
    x = context.noise(0)
    for start, stop in context.intervals(-(-context.steps // 2)):
        slope = context.at(x, start)
        if context.done < context.steps:
            slope = (slope + context.at(x - (start - stop) * slope, stop)) / 2
        x = x - (start - stop) * slope
    return x


FLOW_SAMPLERS: Mapping[str, Callable[[FlowContext], Tensor]] = MappingProxyType({"euler": euler, "heun": heun})
