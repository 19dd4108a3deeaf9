"""Settings of PipeFusion, pipeline parallelism over patches of an image. PipeFusion changes the images."""

from typing import Any

from pydantic import Field

from dithc.config.base import Positive, Settings

MOST_PATCHES = 1 << 14  # the number of a patch is a message tag


class Pipefusion(Settings):
    """Pipeline parallelism over patches: each rank is a stage with some blocks of the network, and the patches of an
    image pass through the stages. A patch attends to keys and values of other patches from the previous step (arXiv
    2405.14430). For networks too slow to share tokens exactly: a rank sends the output of a block once per step,
    independent of the depth."""

    pipefusion_parallel_degree: Positive = 1
    """Ranks that are stages, at most the blocks of the network. Affects the time only: images depend on the patches,
    not on the stages."""
    num_pipeline_patch: int | None = Field(default=None, ge=1, le=MOST_PATCHES)
    """Number of patches of an image. A patch attends to earlier patches of the same step and to later patches of the
    previous step, so more patches use more outdated values. The number of stages if unset; 1 is exact."""
    warmup_steps: int = Field(default=1, ge=1, le=1000)
    """First evaluations of the network, which are exact. In these, stages overlap only across the images of a batch and
    the branches of guidance."""

    @property
    def patches(self) -> int:
        """Number of patches."""
        return self.num_pipeline_patch or self.pipefusion_parallel_degree

    @property
    def decides(self) -> dict[str, Any]:
        """Settings that determine the images; the number of ranks does not."""
        return {"num_pipeline_patch": self.patches, "warmup_steps": self.warmup_steps}

    def is_exact(self, calls: int) -> bool:
        """Return True if images with this number of network evaluations are exact."""
        return self.patches == 1 or self.warmup_steps >= calls

    def __str__(self) -> str:
        many, steps = self.patches, self.warmup_steps
        return f"pipefusion, {many} patch{'es' * (many > 1)}, {steps} warm-up step{'s' * (steps > 1)}"

    def _check_consistency(self) -> None:
        if self.pipefusion_parallel_degree == 1 and self.num_pipeline_patch is None:
            raise ValueError(
                "`pipefusion` with one stage and without `num_pipeline_patch` has no effect: set `pipefusion_parallel_degree` "
                "above 1 (or `num_pipeline_patch`, which works on one rank too), or leave `pipefusion` out"
            )
