"""Group of ranks that generates a shard: data parts of the images, and branches or windows of each part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dithc.engine import native
from dithc.engine.cftp import partition
from dithc.engine.comm import Group
from dithc.engine.cost import sampling
from dithc.latents import Codec
from dithc.sample.parallel.rank_set import RankSet, cut
from dithc.sample.parallel.shared_buffers import SharedGather


@dataclass(frozen=True, kw_only=True)
class SamplingGroup:
    """This rank's place in its group; by default a single rank."""

    degrees: sampling.ParallelDegrees = field(default_factory=sampling.ParallelDegrees)
    number: int | None = 0  # number of the group, from 0; None outside of groups
    members: RankSet = field(default_factory=RankSet)  # all ranks of the group
    data: tuple[int, int] = (0, 1)  # this rank's part of a shard's images, and the number of parts
    leaders: RankSet | None = field(default_factory=RankSet)  # first rank of each part; None on other ranks
    rows: RankSet = field(default_factory=RankSet)  # ranks that generate the same images, and share rows of a batch

    @classmethod
    def of(cls, group: Group, degrees: sampling.ParallelDegrees, groups: Sequence[Sequence[int]]) -> "SamplingGroup":
        """Return this rank's team; collective.

        `groups` are disjoint, of `degrees.size` ranks each; branches and windows innermost, then images.
        """
        if group.size == 1:
            return cls()
        grid = np.arange(degrees.size).reshape(degrees.data, degrees.rows)
        cuts = {"members": [list(range(degrees.size))], "leaders": [grid[:, 0].tolist()], "rows": grid.tolist()}
        gathered = group.gather_objects((group.node, native.library() is not None))
        nodes, have_kernels = [node for node, _ in gathered], all(kernels for _, kernels in gathered)
        rank_sets: dict[str, RankSet | None] = {}
        for name, parts in cuts.items():
            rank_lists = [[members[i] for i in part] for members in groups for part in parts]
            process_group = group.split(rank_lists)
            ranks = next((part for part in rank_lists if group.rank in part), None)
            if ranks is None:
                rank_sets[name] = None
                continue
            is_shared = len({nodes[rank] for rank in ranks}) == 1 and have_kernels
            memory = SharedGather(process_group) if is_shared else None
            rank_sets[name] = RankSet(ranks.index(group.rank), len(ranks), process_group, memory)
        number = next((number for number, members in enumerate(groups) if group.rank in members), None)
        if number is None:
            return cls(number=None, leaders=None)
        position = list(groups[number]).index(group.rank)
        data = position // degrees.rows, degrees.data
        return cls(degrees=degrees, number=number, data=data, **rank_sets)  # type: ignore[arg-type]

    def decode(self, codec: Codec, latents: Tensor) -> Tensor:
        """Return images (N, C, H, W) of latents (N, Z, h, w) on the first rank of the part; an empty tensor (0) on others.

        Each rank decodes complete images, one at a time, because the bits of a convolution may depend on the batch.
        """
        ranks = self.rows
        local = latents[partition(len(latents), ranks.size)[ranks.rank]]
        images = [codec.decode(latent) for latent in torch.split(local, 1) if len(latent) > 0]
        decoded = ranks.gather(torch.cat(images) if images else torch.empty(0), cut(len(latents), ranks.size))
        return torch.empty(0) if decoded is None else decoded

    def local_images(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the images of a shard that this rank generates, alone or jointly."""
        part, parts = self.data
        return indices[partition(len(indices), parts)[part]]

    def run_branches(
        self, conditional: Callable[[], Tensor], unconditional: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the results of two calls, (N, ...) of equal shape; two branches are computed in parallel."""
        if self.rows.size == 1:
            return conditional(), unconditional()
        local = (conditional, unconditional)[self.rows.rank]()
        first, second = self.rows.all_gather(local.unsqueeze(0), [1, 1])
        return first, second

    def gather(self, images: Tensor | None, indices: Sequence[int]) -> Tensor | None:
        """Return the images of shard `indices` on the group's first rank; None on others.

        `images` are those of this rank's part, read on its first rank; None without images.
        """
        if self.leaders is None:
            return None
        return self.leaders.gather(torch.empty(0) if images is None else images, cut(len(indices), self.data[1]))


def rank_groups(degrees: sampling.ParallelDegrees, *, ranks: int) -> list[list[int]]:
    """Return the ranks of each group; leftover ranks are in no group."""
    return [list(range(first, first + degrees.size)) for first in range(0, ranks - degrees.size + 1, degrees.size)]
