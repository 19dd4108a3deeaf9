"""The PLMS sampler (Liu et al. 2022, arXiv 2202.09778, equation 12): DDIM with noise extrapolated from earlier steps.

A sampler is a class of settings, each with its range, and a function `run(context)` from noise to images. `context` provides

    context.schedule          visited steps, len(context.schedule) - 1 (most noise) to 0; alpha_bar of each
    context.noise(0)          initial noise (N, C, h, w); context.noise(1), ... for steps that add noise
    context.predict(x, step)  one network call: clean image, noise and further output, (N, C, h, w) each
    context.finished(step)    advances the progress bar

A result depends on `context` only, so equal seeds give equal images on any number of ranks.
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from dithc.config.schema.evaluations import PluginSampler

# Adams-Bashforth: weights of the noise of the current and earlier steps.
WEIGHTS = {1: (1.0,), 2: (3 / 2, -1 / 2), 3: (23 / 12, -16 / 12, 5 / 12), 4: (55 / 24, -59 / 24, 37 / 24, -9 / 24)}


class Plms(PluginSampler):
    """Settings of `sampler: {kind: plms, memory: 2}`; `sampler: plms` uses their defaults."""

    kind: Literal["plms"]
    memory: int = Field(default=4, ge=1, le=4)
    """Number of steps that contribute noise; 1 is DDIM."""
    predicts: ClassVar[Literal["noise", "flow"]] = "noise"  # "flow" for flow networks

    def run(self, context: Any) -> Any:
        """Return images (N, C, h, w) with one network evaluation per step."""
        x, known = context.noise(0), []
        for step in reversed(range(len(context.schedule))):
            _, noise, _ = context.predict(x, step)
            known = [noise, *known][: self.memory]
            mixed = sum(weight * value for weight, value in zip(WEIGHTS[len(known)], known, strict=True))
            now, before = float(context.schedule.alpha_bar[step]), float(context.schedule.alpha_bar_before[step])
            x0 = (x - math.sqrt(1 - now) * mixed) / math.sqrt(now)
            x = math.sqrt(before) * x0 + math.sqrt(1 - before) * mixed
            context.finished(step)
        return x
