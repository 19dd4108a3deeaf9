"""Settings of measurements that the report shows."""

from typing import Annotated, Literal

from pydantic import Field

from dithc.config.base import Gib, Place, Positive, Preset, Settings, Size


class Strategies(Settings):
    """Trainings under cftp, dp and dp+tp, shown in the report beside the paper's table 2."""

    models: list[Preset] = Field(default=[], max_length=64)
    """Presets to compare; none for no comparison."""
    batches: list[Positive] = Field(default=[8, 16], max_length=64)
    """Images a step over all ranks."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    rounds: Positive = 2
    """Runs of each strategy, in turns."""
    memory_limit_gib: Gib | None = None
    """Memory of all ranks of a run together, beyond which it is out of memory; none for what is available."""


class Scaling(Settings):
    """A training on more and more ranks, shown in the report beside the paper's figures 10 and 11."""

    models: list[Preset] = Field(default=[], max_length=64)
    """Presets to measure; none for no measurement."""
    ranks: list[Positive] = Field(default=[1, 2], max_length=64)
    """Counts of ranks, ascending, each a training."""
    batch: Size = 8
    """Images a step: of each rank in weak scaling, of all ranks in strong scaling."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    rounds: Positive = 2
    """Runs of each count, in turns."""
    without_communication: bool = True
    """Also times the same steps with nothing exchanged."""


class Simulate(Settings):
    """Training steps played on a described machine of many nodes, shown in the report as simulated."""

    machine: Place | None = None
    """Description of the machine, such as profiles/machines/lx2.yaml; none for no simulation."""
    models: list[Preset] = Field(default=["DiT-XL/2"], min_length=1, max_length=64)
    """Presets, curves of each; the paper's experiments are of DiT-XL/2 alone."""
    step: Place | None = None
    """JSON file of `dithc bench step` or `dithc bench scaling` that has a step of these models on one node, for weak and strong
    scaling; none for the published steps, on the paper's machine."""
    nodes: list[Positive] = Field(default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], max_length=64)
    """Counts of nodes."""
    of: list[Literal["paper", "weak", "strong"]] = ["paper"]
    """What to play: the paper's experiments, as it made them and as dithc would; or weak and strong scaling of dithc alone."""


class Stepwise(Settings):
    """A training that gets one of dithc's parts after the other, shown in the report beside the paper's figure 9."""

    model: Preset | None = None
    """Preset to measure; none for no measurement."""
    batch: Size = 8
    """Images a step over all ranks."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    ranks: Positive = 2
    """Ranks on this machine."""
    tune: bool = True
    """Searches the matrix products first, as `dithc tune` does, for the last stage."""
    rounds: Positive = 3
    """Runs of each stage, in turns."""


class AutoMemBench(Settings):
    """What AutoMem and its tiers of memory give, shown in the report."""

    model: Preset | None = None
    """Preset to train; none for no measurement."""
    batch: Size = 8
    """Images a step."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    only: list[Literal["budget", "file", "largest-batch", "pool", "resident"]] = ["budget", "pool", "resident"]
    """Parts: a budget of the fastest tier, a limit on the process with a file tier, the largest batch under a limit; steps with
    and without the pool, and with and without AutoMem where nothing moves."""
    budget: float = Field(default=0.4, gt=0, lt=1)
    """Of the fastest tier, as a share of what the training takes unmanaged."""
    folder: Place = "."
    """Of the file tier, on a local disk."""
    file_gib: Gib = 16.0
    """GiB of the file tier."""
    memory_gib: Gib | None = None
    """GiB of a process when the largest batch is searched."""
    rounds: Positive = 2
    """Runs of each contender, in turns."""


class SamplingBench(Settings):
    """One image by one rank and by several, shown in the report with the images and their differences."""

    model: Preset | None = None
    """Preset to sample with, its weights random; none for no measurement."""
    tokens: list[Size] = Field(default=[256, 1024, 4096], min_length=1, max_length=64)
    """Tokens of an image, square numbers."""
    dtypes: list[Literal["fp32", "bf16"]] = Field(default=["fp32", "bf16"], min_length=1, max_length=2)
    """Compute types."""
    guidance: list[Annotated[float, Field(ge=1, le=100)]] = Field(default=[4.0, 1.0], min_length=1, max_length=16)
    """Scales; 1 is a call of the network alone."""
    ranks: Annotated[int, Field(ge=2, le=1024)] = 2
    """Ranks on this machine, each with an equal share of its cores."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 30
    """Steps of the images that are drawn; caches save little in few."""
    decode_size: Annotated[int, Field(ge=0, le=65536, multiple_of=8)] = 1024
    """Side in pixels of the image that is decoded by one rank and by all; 0 for none."""
    decode_width: Size = 32
    """Channels of the decoders, a power of two; Stable Diffusion's has 128, and takes about ten times as long."""
    diffusers: bool = True
    """Also diffusers' pipeline with the same weights, where it is installed."""
    rounds: Positive = 3
    """Turns of each contender."""


class Bench(Settings):
    """Timing of a training step, shown in the report."""

    model: Preset | None = None
    """Preset to time; null for no bench."""
    batch: Size = 16
    """Images a step."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type."""
    compare: list[Literal["eager", "compile"]] = ["eager"]
    """Contenders."""
    strategies: Strategies = Strategies()
    """Comparison of strategies."""
    scaling: Scaling = Scaling()
    """Measured scaling."""
    stepwise: Stepwise = Stepwise()
    """What each part adds."""
    automem: AutoMemBench = AutoMemBench()
    """What AutoMem gives."""
    sampling: SamplingBench = SamplingBench()
    """One image by one rank and by several."""
    simulate: Simulate = Simulate()
    """Simulated scaling."""
