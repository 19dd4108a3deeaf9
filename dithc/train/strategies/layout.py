"""Roles of ranks under a strategy: pure arithmetic on ranks, dies and core clusters."""

from dataclasses import dataclass

from dithc.config import training
from dithc.log import problem

MEANING: dict[training.StrategyName, str] = {
    "cftp": "a rank is a die, and its clusters share every operation inside the process",
    "dp": "a rank is a cluster with a full replica",
    "dp+tp": "a rank is a cluster, the ranks of a die share every layer by tensor parallelism",
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Grid of ranks: a row shares a global batch, the `tensor_size` ranks of a row share every layer.

    `tensor_size` is 1 except for dp+tp, where it is the number of ranks of a die.
    """

    name: training.StrategyName = "cftp"
    rank: int = 0
    size: int = 1
    tensor_size: int = 1

    @property
    def tensor_rank(self) -> int:
        """This rank's index among the ranks that share its layers."""
        return self.rank % self.tensor_size

    @property
    def data_rank(self) -> int:
        """Index of this rank's share of the global batch."""
        return self.rank // self.tensor_size

    @property
    def data_size(self) -> int:
        """Number of shares of the global batch."""
        return self.size // self.tensor_size


def layout_of(name: training.StrategyName, *, rank: int, size: int, first_ranks: list[int], dies: int) -> Layout:
    """Return the grid of a strategy.

    Args:
        first_ranks: per rank, its number minus its index on the node; equal on a node with neighboring ranks.
        dies: dies of this rank's node that its ranks use.

    Raises:
        UserError: dp+tp on ranks that are not neighbors or that the dies of a node cannot share equally.
    """
    if name != "dp+tp" or size == 1:
        return Layout(name=name, rank=rank, size=size)
    on_node = first_ranks.count(first_ranks[rank])
    tensor_size = on_node // dies if on_node % dies == 0 else 0
    rows = [first_ranks[start : start + tensor_size] for start in range(0, size, tensor_size or size)]
    if tensor_size == 0 or size % tensor_size or any(len(set(row)) > 1 for row in rows):
        raise problem(
            "ranks of strategy dp+tp",
            got=f"{on_node} rank(s) on a node of {dies} die(s), first ranks of the nodes {sorted(set(first_ranks))}",
            expected="the same number of neighboring ranks on every die",
            fix="start one rank per cluster, node after node (srun --distribution=block), or use strategy dp or cftp",
        )
    return Layout(name=name, rank=rank, size=size, tensor_size=tensor_size)


def sentence(layout: Layout, *, dies: int, clusters: int, ranks_on_node: int) -> str:
    """Describe the choice for the log, with the dies and core clusters in use."""
    per_rank = "1 cluster or less" if ranks_on_node >= clusters else f"{clusters / ranks_on_node:g} clusters"
    text = (
        f"strategy {layout.name} ({MEANING[layout.name]}): {layout.size} rank(s), {ranks_on_node} on this node of {dies} die(s) "
        f"and {clusters} cluster(s), {per_rank} per rank; {layout.data_size} share(s) of the global batch, "
        f"{layout.tensor_size} rank(s) per layer"
    )
    wanted = dies if layout.name == "cftp" else clusters
    return text if ranks_on_node == wanted else f"{text}; the strategy is designed for {wanted} rank(s) on this node"
