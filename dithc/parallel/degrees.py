"""How a sampling is cut among ranks: degrees, which of them go together, and the groups of ranks that make a shard each.

Legend: R ranks of the run; T tokens of an image, H heads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Self

from dithc.model import DiTConfig, flops_per_image


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Numbers of ranks that share parts of a shard; their product is the group size.

    Attributes:
        data: share its images, without communication until the end.
        cfg: 2 to compute both branches of guidance at once.
        windows: share the windows of a scene at each step.
        shared: share the tokens of an image on one node, by keys and values in shared memory.
        ulysses: share tokens by messages, each with all tokens for some heads during attention.
        ring: share tokens in sets of `ulysses` ranks that pass keys and values on; rounds differently.
        stages: share the blocks of the network, in patches (PipeFusion).
    """

    data: int = 1
    cfg: int = 1
    shared: int = 1
    ulysses: int = 1
    ring: int = 1
    windows: int = 1
    stages: int = 1

    @property
    def rows(self) -> int:
        """Ranks that share the rows of a call of the network: branches of guidance, windows of a scene."""
        return self.cfg * self.windows

    @property
    def tokens(self) -> int:
        """Ranks that share the tokens of an image."""
        return self.shared * self.ulysses * self.ring

    @property
    def inner(self) -> int:
        """Ranks that share a row of a call: its tokens, or the blocks that these go through."""
        return self.tokens * self.stages

    @property
    def size(self) -> int:
        """Ranks of a group."""
        return self.data * self.rows * self.inner

    def __str__(self) -> str:
        said = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if getattr(self, field.name) > 1]
        return " x ".join(said) or "one rank"


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of a sampling run, and of a row (an image, in one branch).

    Attributes:
        shards: images per shard.
        branches: 2 with guidance, else 1.
        tokens: T.
        heads: H; 0 without a network.
        windows: of a scene at a step; 1 for images of the network's own size.
        width: D.
        depth: L, blocks.
        linear_flops: per row, of products that tokens share.
        uncut_flops: per row, for timestep and label: cut in shared memory, else replicated.
        numbers: outputs per token.
        number_bytes: of an activation.
        calls: of the network for a batch.
        lone_calls: calls with one branch only, outside the guidance interval.
        batch: maximum images per call.
        decoders: maximum ranks that decode one image; 1 if each image is decoded by its owner.
        in_memory: whether ranks of a node can share keys and values in memory.
        patches: of an image in pipeline stages; 0 for complete images.
        warmup_calls: calls that do not use patches.
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
    patches: int = 0
    warmup_calls: int = 0

    @classmethod
    def of(cls, config: DiTConfig, *, shards: Sequence[int], **more: Any) -> Self:
        """The work of a network; `more` are other fields."""
        linear, width = flops_per_image(config).forward_linear, config.hidden_size
        uncut = (
            2 * (6 * config.depth + 3) * width**2
        )  # adaLN of blocks and of the end, and the condition's layers, about
        return cls(
            shards=shards,
            tokens=config.num_tokens,
            heads=config.num_heads,
            width=width,
            depth=config.depth,
            linear_flops=linear - uncut,
            uncut_flops=uncut,
            numbers=config.patch_size**2 * config.out_channels,
            **more,
        )

    @property
    def attention_flops(self) -> float:
        """Of a row: 4 L T^2 D."""
        return 4.0 * self.depth * self.tokens**2 * self.width

    @property
    def row_flops(self) -> float:
        """Of a row, all of it."""
        return self.linear_flops + self.attention_flops + self.uncut_flops


def fault(degrees: Degrees, work: Work, *, ranks: int, ranks_a_node: int) -> str | None:
    """Return why degrees do not fit some work, or None."""
    most = max(work.shards, default=1)
    if degrees.size > ranks:
        return f"{degrees.size} ranks, and there are {ranks}"
    if degrees.data > most:
        return f"{degrees.data} ranks for the {most} images of a shard"
    if degrees.cfg > work.branches:
        return "there is no guidance, so one branch alone"
    if degrees.windows > work.windows:
        return f"{degrees.windows} ranks for {work.windows} window{'s' * (work.windows > 1)} of a scene"
    if degrees.tokens > work.tokens:
        return f"{degrees.tokens} ranks for {work.tokens} tokens"
    if degrees.tokens > 1 and work.heads == 0:
        return "there is no network whose tokens could be cut"
    if degrees.shared > 1 and degrees.ulysses * degrees.ring > 1:
        return "tokens go through shared memory, or by messages"
    if degrees.shared > 1 and not work.in_memory:
        return "keys and values in shared memory need the C kernels"
    if degrees.shared > ranks_a_node or ranks_a_node % degrees.shared:
        return f"{degrees.shared} ranks do not fit whole times into the {ranks_a_node} of a node"
    if degrees.ulysses > 1 and work.heads % degrees.ulysses:
        return f"{work.heads} heads are no multiple of {degrees.ulysses}"
    return _fault_of_stages(degrees, work)


def _fault_of_stages(degrees: Degrees, work: Work) -> str | None:
    if degrees.stages > 1 and not work.patches:
        return "there are no patches that could go through stages"
    if degrees.stages > max(1, work.depth):
        return f"{degrees.stages} stages of {work.depth} blocks"
    if work.patches > work.tokens:
        return f"{work.patches} patches of {work.tokens} tokens"
    if work.patches and degrees.tokens > 1:
        return "tokens are in patches that go through stages one after the other, and are not shared as well"
    return None


def ways(ranks: int, *, windows: int = 1, given: int | None = None, stages: int = 1) -> Iterator[Degrees]:
    """Yield all ways to share one image among at most `ranks` ranks, possible or not: in memory, by messages, or by stages.

    Args:
        windows: of a scene. Ranks that share windows share tokens in memory only, unless `given`. Window degrees that do not
            reduce the windows per rank are skipped.
        given: a fixed degree of windows.
        stages: a fixed number, without token sharing.
    """
    if stages > 1:
        yield from (Degrees(cfg=cfg, stages=stages) for cfg in (1, 2) if cfg * stages <= ranks)
        return
    of_windows = [
        degree for degree in range(1, windows + 1) if degree == 1 or -(-windows // degree) < -(-windows // (degree - 1))
    ]
    for cfg, of_scene in product((1, 2), of_windows if given is None else [given]):
        most = ranks // (cfg * of_scene)
        yield from (Degrees(cfg=cfg, windows=of_scene, shared=tokens) for tokens in range(1, most + 1))
        if of_scene == 1 or given is not None:
            yield from (
                Degrees(cfg=cfg, windows=of_scene, ulysses=ulysses, ring=ring)
                for ulysses in range(1, most + 1)
                for ring in range(1 + (ulysses == 1), most // ulysses + 1)
            )


def groups_of(degrees: Degrees, *, ranks: int) -> list[list[int]]:
    """Return the ranks of each group; remaining ranks are in no group."""
    return [list(range(at, at + degrees.size)) for at in range(0, ranks - degrees.size + 1, degrees.size)]
