"""Predicted cost of a cell: floating-point operations over a rate, and memory of a training run.

Seconds: starts x START_SECONDS + steps x images x FLOP per image / (cores x `paper.gflops_per_core` x 1e9 / slowness).
An image has three passes of 2 x 256 x (elements + depth x 2 x 256 x width) operations: products with weights, and
attention. Memory: `dithc.engine.cost.memory`, with a replica of the state per rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dithc.config import training
from dithc.core.units import GIB
from dithc.engine.cost import memory

TOKENS = 256  # of 32 x 32 latents in patches of 2
PASSES = 3  # forward, and the gradients of input and weight
START_SECONDS = 8.0  # start of a process with torch, without warm-up steps
MEMORY_SHARE = 0.85  # of the memory of a node, for a cell
# Step time relative to dithc, by variant.
SLOWNESS: Mapping[str, float] = {
    "dithc": 1.0,
    "untuned": 1.0,
    "own-products": 1.2,
    "torch-blas": 1.8,
    "onednn": 1.8,
    "openblas": 3.0,
    "eager": 2.0,
    "compile": 1.7,
    "cftp": 1.0,
    "dp": 1.1,
    "dp+tp": 1.4,
}


@dataclass(frozen=True)
class NodeModel:
    """Cores for computing, and memory, of the measuring node."""

    cores: int
    memory_gib: float


@dataclass(frozen=True)
class Network:
    """A preset, such as `DiT-S/2`, with an optional other depth."""

    preset: str
    depth: int | None = None

    @property
    def label(self) -> str:
        return self.preset.removeprefix("DiT-")

    @property
    def override(self) -> str | None:
        """Change of the preset, for the option of benchmarks."""
        return None if self.depth is None else f"depth={self.depth}"

    @property
    def file_name(self) -> str:
        return self.label.replace("/", "-").lower()

    @property
    def run(self) -> training.RunConfig:
        model = {"preset": self.preset} | ({} if self.depth is None else {"depth": self.depth})
        return training.RunConfig.model_validate({"dataset": "any", "steps": 1, "model": model})

    def memory_gib(self, *, images: int, replicas: int = 1) -> float:
        run = self.run
        return (replicas * memory.rank_memory(run).total + images * memory.image_bytes(run, TOKENS)) / GIB


@dataclass(frozen=True)
class Cost:
    """Cost rule of a node; `gflops_per_core` is the rate of a dithc training step in fp32."""

    node: NodeModel
    gflops_per_core: float

    def step(self, network: Network, *, images: int, variant: str = "dithc", cores: int | None = None) -> float:
        rate = (cores or self.node.cores) * self.gflops_per_core * 1e9 / SLOWNESS[variant]
        return images * PASSES * network.run.model.flops(TOKENS) / rate

    def fits(self, gib: float) -> bool:
        return gib <= MEMORY_SHARE * self.node.memory_gib

    def largest_batch(self, network: Network, *, limit: int, seconds: float) -> int:
        """Return the largest power of two, up to `limit`, that fits memory and time of a step on a node; at least 1."""

        def is_possible(batch: int) -> bool:
            is_fast = self.step(network, images=batch) <= seconds
            return batch <= limit and is_fast and self.fits(network.memory_gib(images=batch))

        batch = 1
        while is_possible(2 * batch):
            batch *= 2
        return batch
