"""The sampler PLMS (Liu et al. 2022, arXiv 2202.09778, equation 12): DDIM's step with noise extrapolated from earlier steps.

A sampler is a class of settings, each with its range, and a function `run(walk)` from noise to images. `walk` has

    walk.schedule          the steps to visit, len(walk.schedule) - 1 (most noise) to 0; alpha_bar of each
    walk.noise(0)          the image of pure noise (N, C, h, w); walk.noise(1), ... where steps add noise
    walk.predict(x, step)  the network once: clean image, noise, and what else it gives, (N, C, h, w) each
    walk.finished(step)    moves the progress bar

and whatever a result depends on comes through it: the same seed gives the same image on any number of ranks.
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from dithc.config.training import InstalledSampler

# Adams-Bashforth: weights of the noise of this step and of those before it.
WEIGHTS = {1: (1.0,), 2: (3 / 2, -1 / 2), 3: (23 / 12, -16 / 12, 5 / 12), 4: (55 / 24, -59 / 24, 37 / 24, -9 / 24)}


class Plms(InstalledSampler):
    """Settings of `sampler: {kind: plms, memory: 2}`; `sampler: plms` has their defaults."""

    kind: Literal["plms"]
    memory: int = Field(default=4, ge=1, le=4)
    """Steps whose noise is used; 1 is DDIM."""
    predicts: ClassVar[Literal["noise", "flow"]] = "noise"  # "flow" for networks that learn a flow

    def run(self, walk: Any) -> Any:
        """Images (N, C, h, w); one evaluation of the network a step."""
        x, known = walk.noise(0), []
        for step in reversed(range(len(walk.schedule))):
            _, noise, _ = walk.predict(x, step)
            known = [noise, *known][: self.memory]
            mixed = sum(weight * one for weight, one in zip(WEIGHTS[len(known)], known, strict=True))
            now, before = float(walk.schedule.alpha_bar[step]), float(walk.schedule.alpha_bar_before[step])
            x0 = (x - math.sqrt(1 - now) * mixed) / math.sqrt(now)
            x = math.sqrt(before) * x0 + math.sqrt(1 - before) * mixed
            walk.finished(step)
        return x
