"""Settings of generated scenes: images larger than the tiles that a network learnt."""

from pydantic import Field, model_validator

from dithc.config.base import Settings

LARGEST_SCENE = 1 << 16  # pixels of a side: the latent of a scene is in memory, and one band of it is 8 GiB on disk
LARGEST_OVERLAP = 0.9  # of a side: a hundred predictions of each place


class Windows(Settings):
    """How a network makes a scene larger than its tiles: at each step window by window, of the tiles' size."""

    overlap: float = Field(default=0.25, ge=0.0, le=LARGEST_OVERLAP)
    """Share of a window's side that the next window covers too. Predictions are averaged there, each the less the nearer its own
    window ends (MultiDiffusion). A network is called 1 / (1 - overlap)^2 times for each place and step: 1.8 times with 0.25, 4
    with 0.5."""
    shift: bool = False
    """Move the grid of windows from step to step by what follows from (seed, timestep), so that no place is at a border for long
    (SpotDiffusion). Then windows need not overlap: `overlap: 0, shift: true` calls the network least."""

    @model_validator(mode="after")
    def _without_seams(self) -> "Windows":
        if self.overlap == 0.0 and not self.shift:
            raise ValueError("windows that neither overlap nor shift leave seams: set `overlap: 0.25` or `shift: true`")
        return self
