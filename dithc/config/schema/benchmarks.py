"""Settings of the benchmarks in the report, and of the reproduced tables and figures of the paper."""

from typing import Literal

from pydantic import Field

from dithc.config.schema.base import Gib, Place, Positive, Preset, Settings, Size


class StrategiesConfig(Settings):
    """Training runs with the strategies cftp, dp and dp+tp. The report compares them with table 2 of the paper."""

    models: list[Preset] = Field(default=[], max_length=64)
    """Presets to compare; an empty list disables the comparison."""
    batches: list[Positive] = Field(default=[8, 16], max_length=64)
    """Images per step over all ranks."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    rounds: Positive = 2
    """Runs of each strategy, interleaved."""
    memory_limit_gib: Gib | None = None
    """Total memory of all ranks of a run. A run beyond it is reported as out of memory; the free memory if unset."""


class ScalingConfig(Settings):
    """Training runs on increasing numbers of ranks. The report compares them with figures 10 and 11 of the paper."""

    models: list[Preset] = Field(default=[], max_length=64)
    """Presets to measure; an empty list disables the measurement."""
    ranks: list[Positive] = Field(default=[1, 2], max_length=64)
    """Numbers of ranks, ascending; one training run each."""
    batch: Size = 8
    """Images per step: per rank for weak scaling, over all ranks for strong scaling."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    rounds: Positive = 2
    """Runs of each number of ranks, interleaved."""
    no_communication_baseline: bool = True
    """Also measure the same steps without communication."""


class SimulateConfig(Settings):
    """Simulation of training steps on a described machine with many nodes, marked as simulated in the report."""

    machine: Place | None = None
    """Description of the machine, such as profiles/machines/lx2.yaml; no simulation if unset."""
    models: list[Preset] = Field(default=["DiT-XL/2"], min_length=1, max_length=64)
    """Presets, with separate curves. The experiments of the paper use DiT-XL/2 only."""
    step: Place | None = None
    """JSON file of `dithc bench step` or `dithc bench scaling` with a step of these models on one node, for weak and
    strong scaling. If unset, the published steps on the machine of the paper."""
    nodes: list[Positive] = Field(default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], max_length=64)
    """Numbers of nodes."""
    experiments: list[Literal["paper", "weak", "strong"]] = ["paper"]
    """Simulated experiments. paper: experiments of the paper, as published and with dithc; weak, strong: scaling of dithc."""


class StepwiseConfig(Settings):
    """Training runs that enable one component of dithc after another. Compared with figure 9 of the paper."""

    model: Preset | None = None
    """Preset to measure; no measurement if unset."""
    batch: Size = 8
    """Images per step over all ranks."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    ranks: Positive = 2
    """Ranks on this machine."""
    tune: bool = True
    """Tune the matrix products as `dithc tune-kernels` does, for the last stage."""
    rounds: Positive = 3
    """Runs of each stage, interleaved."""


class AutoMemBenchConfig(Settings):
    """Measurements of AutoMem and its memory tiers."""

    model: Preset | None = None
    """Preset to train; no measurement if unset."""
    batch: Size = 8
    """Images per step."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    parts: list[Literal["budget", "file", "pool", "resident"]] = ["budget", "pool", "resident"]
    """Measurements. budget: with a budget of the fastest tier; file: a limit on the process, with a file tier; pool: steps
    with and without the pool; resident: steps with and without AutoMem if no data moves."""
    fast_memory_fraction: float = Field(default=0.4, gt=0, lt=1)
    """Budget of the fastest tier, as a share of the memory that training uses without AutoMem."""
    spill_folder: Place = "."
    """Folder of the file tier, on a local disk."""
    spill_gib: Gib = 16.0
    """Size of the file tier in GiB."""
    rounds: Positive = 2
    """Runs of each variant, interleaved."""


class BenchConfig(Settings):
    """Benchmarks in the report; the keys of this section time a training step."""

    model: Preset | None = None
    """Preset to time; no measurement if unset."""
    batch: Size = 16
    """Images per step."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    compare: list[Literal["eager", "compile"]] = ["eager"]
    """PyTorch variants to compare with."""
    strategies: StrategiesConfig = StrategiesConfig()
    """Comparison of strategies."""
    scaling: ScalingConfig = ScalingConfig()
    """Measured scaling."""
    stepwise: StepwiseConfig = StepwiseConfig()
    """Speedup of each component."""
    automem: AutoMemBenchConfig = AutoMemBenchConfig()
    """Measurements of AutoMem."""
    simulate: SimulateConfig = SimulateConfig()
    """Simulated scaling."""


Target = Literal["table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56"]


class PaperConfig(Settings):
    """Tables and figures of the paper as targets of the workflow. `scale` determines their settings."""

    scale: Literal["ci", "node", "paper"] = "ci"
    """Size of the measurements. ci: minutes on 2 cores, which only tests that everything works; node: measurements of
    one node in `time_budget_hours`, with models, batches and ranks that fit; paper: the published settings."""
    targets: list[Target] = Field(
        default=["table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56"],
        min_length=1,
        max_length=16,
    )
    """Contents of the target `paper`; at scale node also the order in which the hours are allocated."""
    time_budget_hours: float = Field(default=10.0, gt=0, le=1000)
    """Hours of measurements at scale node. Measurements beyond the remaining hours are skipped."""
    gflops_per_core: float = Field(default=40.0, ge=1e-3, le=10.0**6)
    """Typical speed of a core in an fp32 training step in GFLOP/s, for predictions of the time of each measurement.
    `machine.gflops_per_core` is a lower bound of the speed, for walltimes."""
    memory_gib: Gib | None = None
    """Memory limit in GiB of all ranks of a strategy, enforced by the kernel. Table 2 reports a run that exceeds it as
    out of memory. If unset, 1.5 at scale ci and the free memory otherwise."""
    seeds: Positive = 3
    """Training runs per platform in figure 7, one per seed. Their spread is the noise level of the comparison."""
    loss_curve_steps: Positive | None = None
    """Steps in figure 7. If unset, 20 at scale ci, 200 at node and 1,000 at paper."""
    machine: Place = "profiles/machines/lx2.yaml"
    """Description of the machine for simulations of many nodes."""
