"""Settings of PipeFusion, which changes images: patches of an image that go through stages of a network one after the other."""

from typing import Any

from pydantic import Field, model_validator

from dithc.config.base import Positive, Settings

MOST_PATCHES = 1 << 14  # each is a message, whose tag is its number


class Pipefusion(Settings):
    """A network cut into stages of its depth, one a rank, through which the patches of an image go one after the other, each
    attending to keys and values that others left at the step before (arXiv 2405.14430). For links too slow to share tokens
    exactly: a rank sends what a block hands on, once a step, whatever the depth."""

    pipefusion_parallel_degree: Positive = 1
    """Ranks that are stages: at most the blocks of the network. Decides time alone: any number gives the same images of the same
    patches."""
    num_pipeline_patch: int | None = Field(default=None, ge=1, le=MOST_PATCHES)
    """Parts of the tokens of an image: each sees the parts before it as they are, and those behind it as they were at the step
    before; the more, the more of what it sees is old. As many as stages if not given; 1 is exact."""
    warmup_steps: int = Field(default=1, ge=1, le=1000)
    """First calls of the network that are exact; all of them make all exact. In these, stages have only the images of a batch
    (and branches of guidance) to work on at the same time."""

    @property
    def patches(self) -> int:
        """Parts of the tokens."""
        return self.num_pipeline_patch or self.pipefusion_parallel_degree

    @property
    def decides(self) -> dict[str, Any]:
        """What images depend on: how many ranks make them is not in it."""
        return {"num_pipeline_patch": self.patches, "warmup_steps": self.warmup_steps}

    def is_exact(self, calls: int) -> bool:
        """Whether images of so many calls of a network are those without it."""
        return self.patches == 1 or self.warmup_steps >= calls

    def __str__(self) -> str:
        many, steps = self.patches, self.warmup_steps
        return f"pipefusion, {many} patch{'es' * (many > 1)}, {steps} warm-up step{'s' * (steps > 1)}"

    @model_validator(mode="after")
    def _says_patches(self) -> "Pipefusion":
        if self.pipefusion_parallel_degree == 1 and self.num_pipeline_patch is None:
            raise ValueError(
                "`pipefusion` of one stage and no `num_pipeline_patch` cuts nothing: give `pipefusion_parallel_degree` above 1 "
                "(or `num_pipeline_patch`, which one rank makes too), or leave `pipefusion` out"
            )
        return self


def check_stages(where: str, settings: Pipefusion, *, tokens: int, depth: int, ranks: int | None) -> None:
    """Raises a ValueError where an evaluation cannot be made so.

    Args:
        where: key of the settings.
        settings: its own.
        tokens: of an image.
        depth: blocks of the network.
        ranks: that are started; None where that is not known yet.
    """
    stages, patches = settings.pipefusion_parallel_degree, settings.patches
    if stages > depth:
        raise ValueError(
            f"{where}.pipefusion_parallel_degree is {stages}, and the network has {depth} blocks, of which each stage needs one: "
            f"take {depth} at most"
        )
    if patches > tokens:
        raise ValueError(
            f"{where}.num_pipeline_patch is {patches}, and an image has {tokens} tokens, of which each patch needs one: take "
            f"{tokens} at most"
        )
    if ranks is not None and stages > ranks:
        raise ValueError(
            f"{where}.pipefusion_parallel_degree is {stages}, and {ranks} ranks are started: start more, or take {ranks} and "
            f"`num_pipeline_patch: {patches}`, which makes the same images"
        )
