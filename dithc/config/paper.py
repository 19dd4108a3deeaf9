"""Settings of the reproduced tables and figures of the paper."""

from typing import Literal

from pydantic import Field

from dithc.config.base import Gib, Place, Positive, Settings

Target = Literal["table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56"]


class Paper(Settings):
    """Tables and figures of the paper as targets of the workflow. `scale` determines their settings."""

    scale: Literal["ci", "node", "paper"] = "ci"
    """Size of the measurements. ci: minutes on 2 cores, which only tests that everything works; node: measurements of
    one node in `hours`, with models, batches and ranks that fit; paper: the published settings."""
    targets: list[Target] = Field(
        default=["table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56"],
        min_length=1,
        max_length=16,
    )
    """Contents of the target `paper`; at scale node also the order in which the hours are allocated."""
    hours: float = Field(default=10.0, gt=0, le=1000)
    """Hours of measurements at scale node. Measurements beyond the remaining hours are skipped."""
    gflops_per_core: float = Field(default=40.0, ge=1e-3, le=10.0**6)
    """Speed of a core in an fp32 training step in GFLOP/s, for predictions of the time of each measurement."""
    memory_gib: Gib | None = None
    """Memory limit in GiB of all ranks of a strategy, enforced by the kernel. Table 2 reports a run that exceeds it as
    out of memory. If unset, 1.5 at scale ci and the free memory otherwise."""
    seeds: Positive = 3
    """Training runs per platform in figure 7, one per seed. Their spread is the noise level of the comparison."""
    curve_steps: Positive | None = None
    """Steps in figure 7. If unset, 20 at scale ci, 200 at node and 1,000 at paper."""
    machine: Place = "profiles/machines/lx2.yaml"
    """Description of the machine for simulations of many nodes."""
