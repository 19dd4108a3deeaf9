"""Roles of ranks under a strategy: pure arithmetic on ranks, dies and core clusters."""

from dataclasses import dataclass

from dithc.config import training
from dithc.core.logging import user_error


@dataclass(frozen=True, kw_only=True)
class RankGrid:
    """Grid of ranks: a row shares a global batch, the `tensor_size` ranks of a row share every layer.

    Attributes:
        tensor_size: 1 except for dp+tp, where it is the number of ranks of a die.
        num_stages: parts of the network, on as many equal runs of ranks (`machine.pipeline_stages`).
        first_ranks: per rank, the first rank of its node; empty with one rank.
    """

    name: training.StrategyName = "cftp"
    rank: int = 0
    size: int = 1
    tensor_size: int = 1
    num_stages: int = 1
    first_ranks: tuple[int, ...] = ()

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of each node."""
        return [
            [rank for rank, node in enumerate(self.first_ranks) if node == first]
            for first in dict.fromkeys(self.first_ranks)
        ]

    @property
    def data_rank(self) -> int:
        """Index of this rank's share of the global batch."""
        return self.rank % (self.size // self.num_stages) // self.tensor_size

    @property
    def data_size(self) -> int:
        """Number of shares of the global batch."""
        return self.size // self.tensor_size // self.num_stages

    @property
    def num_later_stages(self) -> int:
        """Number of stages after the stage of this rank."""
        return self.num_stages - 1 - self.rank // (self.size // self.num_stages)

    @property
    def num_ahead(self) -> int:
        """Forward passes ahead of the backward pass: one per later stage, and as many to hide the messages."""
        return 2 * self.num_later_stages

    @property
    def loss_weight(self) -> float:
        """Factor on this rank's losses for their sum over all ranks: ranks that share layers have the same losses, and only
        the last stage has losses."""
        return 0.0 if self.num_later_stages else 1 / self.tensor_size


def layout_of(
    name: training.StrategyName, *, rank: int, size: int, first_ranks: list[int], dies: int, stages: int = 1
) -> RankGrid:
    """Return the grid of a strategy on ranks that use `dies` dies of this rank's node.

    `first_ranks` is per rank its number minus its index on the node. Raises UserError for dp+tp on ranks that are not
    neighbors or that the dies of a node cannot share equally, and for ranks that `stages` cannot share equally.
    """
    if size % stages:
        raise user_error(
            "machine.pipeline_stages",
            got=f"{stages} stages on {size} rank(s)",
            expected="the same number of ranks in every stage",
            fix=f"start a multiple of {stages} ranks, or set another number of stages",
        )
    if name != "dp+tp" or size == 1:
        return RankGrid(name=name, rank=rank, size=size, num_stages=stages, first_ranks=tuple(first_ranks))
    on_node = first_ranks.count(first_ranks[rank])
    tensor_size = on_node // dies if on_node % dies == 0 else 0
    rows = [first_ranks[start : start + tensor_size] for start in range(0, size, tensor_size or size)]
    if tensor_size == 0 or size % tensor_size or any(len(set(row)) > 1 for row in rows):
        raise user_error(
            "ranks of strategy dp+tp",
            got=f"{on_node} rank(s) on a node of {dies} die(s), first ranks of the nodes {sorted(set(first_ranks))}",
            expected="the same number of neighboring ranks on every die",
            fix="start one rank per cluster, node after node (srun --distribution=block), or use strategy dp or cftp",
        )
    return RankGrid(name=name, rank=rank, size=size, tensor_size=tensor_size)
