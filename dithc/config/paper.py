"""Settings of the tables and figures of the paper, made again."""

from typing import Literal

from pydantic import Field

from dithc.config.base import Gib, Place, Positive, Settings

Target = Literal["table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56"]


class Paper(Settings):
    """The tables and figures of the paper, as targets of the workflow; all that they run follows from `scale`."""

    scale: Literal["ci", "node", "paper"] = "ci"
    """How large. ci: minutes on 2 cores, all small, which only proves the path; node: what one node measures in `hours`, models,
    batches and ranks by its memory and cores; paper: the published settings."""
    targets: list[Target] = Field(
        default=["table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56"],
        min_length=1,
        max_length=16,
    )
    """What the target `paper` makes; at scale node also the order in which the hours are given out."""
    hours: float = Field(default=10.0, gt=0, le=1000)
    """Of measuring, at scale node; what is predicted to need more than is left is skipped, with the reason."""
    gflops_per_core: float = Field(default=40.0, ge=1e-3, le=10.0**6)
    """What a core does in a training step in fp32, in GFLOP/s, from which the seconds of each cell are predicted."""
    memory_gib: Gib | None = None
    """GiB that all ranks of a strategy may have together, a limit of the kernel's beyond which table 2 says out of memory; none
    for 1.5 at scale ci and for what is free otherwise."""
    seeds: Positive = 3
    """Trainings of each platform in figure 7, by seed: what differs between them is the noise that platforms are judged by."""
    curve_steps: Positive | None = None
    """Steps of figure 7; none for 20 at scale ci, 200 at node and 1,000 at paper."""
    machine: Place = "profiles/machines/lx2.yaml"
    """Description of the machine on which many nodes are simulated."""
