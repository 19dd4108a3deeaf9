"""Degrees of parallelism of a sampling run, and its work: all combinations, and the reasons against invalid ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product


@dataclass(frozen=True, kw_only=True)
class ParallelDegrees:
    """Numbers of ranks that share parts of a shard; their product is the group size.

    Attributes:
        data: ranks that share the images of a shard, without communication until the end.
        cfg: 2 to compute both branches of guidance simultaneously.
        shared: ranks of a node that share the tokens of an image, with keys and values in shared memory.
        ulysses: ranks that share tokens by messages; in attention each has all tokens of some heads.
        windows: ranks that share the windows of a scene at each step.
    """

    data: int = 1
    cfg: int = 1
    shared: int = 1
    ulysses: int = 1
    windows: int = 1

    @property
    def rows(self) -> int:
        """Ranks that share the rows of a call: guidance branches, windows of a scene."""
        return self.cfg * self.windows

    @property
    def tokens(self) -> int:
        """Ranks that share the tokens of an image."""
        return self.shared * self.ulysses

    @property
    def size(self) -> int:
        return self.data * self.rows * self.tokens

    def __str__(self) -> str:
        parts = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if getattr(self, field.name) > 1]
        return " x ".join(parts) or "one rank"


@dataclass(frozen=True, kw_only=True)
class SamplingWork:
    """Work of a sampling run and of one row (an image in one branch).

    Attributes:
        shards: images per shard.
        branches: 2 with guidance, else 1.
        heads: heads of the network; 0 without a network.
        windows: windows per scene and step; 1 for images of the network's native size.
        linear_flops: FLOPs per row of products that are shared by tokens.
        uncut_flops: FLOPs per row for timestep and label: shared in shared memory, else replicated.
        numbers: outputs per token.
        number_bytes: bytes per activation.
        calls: network calls per batch.
        lone_calls: calls with one branch only, outside the guidance interval.
        batch: maximum images per call.
        decoders: maximum ranks that decode one image; 1 if each image is decoded by its owner.
        in_memory: whether ranks of a node can share keys and values in memory.
    """

    shards: Sequence[int]
    branches: int = 1
    tokens: int = 1
    heads: int = 0
    windows: int = 1
    width: int = 0
    depth: int = 0
    linear_flops: float = 0.0
    uncut_flops: float = 0.0
    numbers: int = 0
    number_bytes: int = 4
    calls: int = 1
    lone_calls: int = 0
    batch: int = 64
    decoders: int = 1
    in_memory: bool = True

    def attention_flops(self, tokens: int) -> float:
        """Return the FLOPs of attention among `tokens` tokens: 4 L t^2 D."""
        return 4.0 * self.depth * tokens**2 * self.width

    @property
    def row_flops(self) -> float:
        return self.linear_flops + self.attention_flops(self.tokens) + self.uncut_flops


def rejection_reason(degrees: ParallelDegrees, work: SamplingWork, *, ranks: int, ranks_per_node: int) -> str | None:
    """Return why degrees do not fit some work, or None."""
    most_images = max(work.shards, default=1)
    if degrees.size > ranks:
        return f"{degrees.size} ranks, and there are {ranks}"
    if degrees.data > most_images:
        return f"{degrees.data} ranks for the {most_images} images of a shard"
    if degrees.cfg > work.branches:
        return "without guidance the network has a single branch"
    if degrees.windows > work.windows:
        return f"{degrees.windows} ranks for {work.windows} window{'s' * (work.windows > 1)} of a scene"
    if degrees.tokens > work.tokens:
        return f"{degrees.tokens} ranks for {work.tokens} tokens"
    if degrees.tokens > 1 and work.heads == 0:
        return "tokens can only be shared with a network"
    if degrees.shared > 1 and degrees.ulysses > 1:
        return "tokens are shared through memory or by messages, not both"
    if degrees.shared > 1 and not work.in_memory:
        return "keys and values in shared memory require the C kernels"
    if degrees.shared > ranks_per_node or ranks_per_node % degrees.shared:
        return f"{degrees.shared} does not divide the {ranks_per_node} ranks per node"
    if degrees.ulysses > 1 and work.heads % degrees.ulysses:
        return f"{work.heads} heads are not a multiple of {degrees.ulysses}"
    return None


def candidates(ranks: int, *, windows: int = 1, given: int | None = None) -> Iterator[ParallelDegrees]:
    """Yield all degrees that share one image of `windows` windows among at most `ranks` ranks, valid or not.

    Ranks that share windows share tokens in memory only, unless the degree of windows is `given`. Window degrees that do
    not reduce the windows per rank are skipped.
    """
    window_degrees = [
        degree for degree in range(1, windows + 1) if degree == 1 or -(-windows // degree) < -(-windows // (degree - 1))
    ]
    for cfg, windowed in product((1, 2), window_degrees if given is None else [given]):
        limit = ranks // (cfg * windowed)
        yield from (ParallelDegrees(cfg=cfg, windows=windowed, shared=tokens) for tokens in range(1, limit + 1))
        if windowed == 1 or given is not None:
            yield from (ParallelDegrees(cfg=cfg, windows=windowed, ulysses=tokens) for tokens in range(2, limit + 1))
