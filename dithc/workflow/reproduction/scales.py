"""Sizes of the targets by `paper.scale`: models, batches and rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from dithc.config import ExperimentConfig
from dithc.workflow.reproduction.cost import Cost, Network, NodeModel

MODELS = ("DiT-XL/2", "DiT-L/2", "DiT-B/2", "DiT-S/2")  # in the order of rows in the paper
BATCH = 112  # images per node in the paper, which also has twice as many
STRONG_BATCHES = (448, 3072, 16384)  # of figure 11
CURVE_STEPS = {"ci": 20, "node": 200, "paper": 1000}
CI_MEMORY_GIB = 1.5
STEPS_OF_HOURS = 200  # of the largest network with the larger batch: approximately the cost of all targets of a node


@dataclass(frozen=True, kw_only=True)
class ScaleSettings:
    """Work per node at a scale.

    Attributes:
        networks: of tables 2 and 3 and figure 10, largest first.
        batches: images per step of the node, smaller first.
        rounds, steps: runs per variant, and timed steps of a run.
        step_rounds: rounds of alternating variants within a process.
        ranks: per node, for measured scaling and figure 9.
        tunes: whether to tune products for each network.
        memory_gib: limit for all ranks of a strategy; None for the free memory.
        strong: global batches of figure 11; empty to use the batch of one node.
    """

    networks: Sequence[Network]
    batches: tuple[int, ...]
    rounds: int
    steps: int
    step_rounds: int
    ranks: tuple[int, ...]
    tunes: bool
    loss_curve_steps: int
    memory_gib: float | None
    strong: tuple[int, ...] = ()

    @property
    def strong_batches(self) -> tuple[int, ...]:
        """Global batches of figure 11; on one node the batch of table 2, at least the number of ranks."""
        return self.strong or (max(self.batches[-1], max(self.ranks)),)

    @property
    def largest(self) -> Network:
        """DiT-XL/2, for figures with one model."""
        return self.networks[0]


def sizes_of(experiment: ExperimentConfig, node: NodeModel, cost: Cost) -> ScaleSettings:
    settings = experiment.paper
    is_ci, is_full = settings.scale == "ci", settings.scale == "paper"
    networks = [Network(name, depth=1 if is_ci else None) for name in (MODELS[:1] + MODELS[-1:] if is_ci else MODELS)]
    if is_ci:
        batches: tuple[int, ...] = (2, 4)
    elif is_full:
        batches = (BATCH, 2 * BATCH)
    else:  # two batches as in the paper: the largest model fits memory under CFTP, and all cells the hours
        second = cost.largest_batch(
            networks[0], limit=2 * BATCH, seconds=settings.time_budget_hours * 3600 / STEPS_OF_HOURS
        )
        batches = (max(1, second // 2), max(2, second))
    return ScaleSettings(
        networks=networks,
        batches=batches,
        rounds=1 if is_ci else 2,
        steps=1 if is_ci else 3,
        step_rounds=2 if is_ci else 5,
        ranks=(1, 2)[: node.cores] if is_ci else _ranks(experiment, node),
        tunes=not is_ci,
        loss_curve_steps=settings.loss_curve_steps or CURVE_STEPS[settings.scale],
        memory_gib=settings.memory_gib or (CI_MEMORY_GIB if is_ci else None),
        strong=STRONG_BATCHES if is_full else (),
    )


def _ranks(experiment: ExperimentConfig, node: NodeModel) -> tuple[int, ...]:
    """Return powers of two up to the ranks of all nodes, each with at least one core."""
    machine = experiment.machine
    limit = (machine.ranks if machine.launcher != "none" else None) or min(4, node.cores)
    return tuple(1 << power for power in range(limit.bit_length()))
