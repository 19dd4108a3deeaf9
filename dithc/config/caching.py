"""Settings of caches across the steps of a sampling, which change its images."""

from typing import Annotated, Literal

from pydantic import Field

from dithc.config.base import Settings


class FirstBlock(Settings):
    """The first block is always run; where it adds nearly what it added when all were run last, what the others added then is
    used again. Decided for each image, and for each branch of its guidance, by itself."""

    kind: Literal["first-block"]
    """first-block: by how much the first block's part has changed."""
    threshold: float = Field(default=0.05, ge=0.0, le=10.0)
    """The others are run again from this change on: the mean magnitude of the difference, as a share of that of the part. 0 runs
    them always."""

    def __str__(self) -> str:
        return f"{self.kind} cache, threshold {self.threshold:g}"


class Taylor(Settings):
    """The blocks are run at some of the calls; in between, what they add is extrapolated from these over the timesteps."""

    kind: Literal["taylor"]
    """taylor: by a polynomial through what the blocks added, in the manner of TaylorSeer (arXiv 2503.06923)."""
    interval: int = Field(default=3, ge=1, le=100)
    """Calls from one that runs the blocks to the next: 3 runs them at every third. 1 runs them always."""
    order: int = Field(default=1, ge=0, le=4)
    """Degree of the polynomial; 0 uses the last part again. 2 suits samplers that add no noise, such as ddim, in 30 steps and
    more; of ddpm, 1 at most. Each degree keeps a stream of tokens more for each image."""
    warmup_steps: int = Field(default=6, ge=1, le=1000)
    """First calls, all of which run the blocks: near noise, what they add changes fastest. In 30 steps of a flow (Sentinel-2,
    euler, interval 3) FID was 4 % worse with 3, and within the noise of seeds with 6, which ran 47 % of the blocks."""

    def __str__(self) -> str:
        return f"{self.kind} cache, interval {self.interval}, order {self.order}"


Cache = Annotated[FirstBlock | Taylor, Field(discriminator="kind")]
