"""How ranks share a training: cftp, dp, dp+tp; the model, the loop and the checkpoints know of it only through this file.

Legend: N batch, C channels.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dithc import hcops
from dithc.comm import Group
from dithc.config import training
from dithc.hardware import Machine as Node
from dithc.hardware import discover
from dithc.log import logger
from dithc.train.strategy_layout import Layout, layout_of, sentence

if TYPE_CHECKING:
    from dithc.train.strategy_tensor import Shards

log = logger(__name__)
MESH = ("dies", "clusters")


def layout_on(group: Group, name: training.StrategyName, *, node: Node | None = None) -> Layout:
    """The grid of ranks of a strategy on a group, said in the log.

    Args:
        group: the connected ranks.
        name: the strategy.
        node: the machine; None for this one.

    Raises:
        UserError: dp+tp on ranks that the dies of a node cannot share equally.
    """
    node = node or discover()
    firsts = group.gather_objects(group.rank - group.local_rank)
    layout = layout_of(name, rank=group.rank, size=group.size, first_ranks=firsts, node=node)
    log.info(sentence(layout, node=node, ranks_on_node=group.local_size))
    return layout


class Strategy:
    """Wraps a model for training on the ranks of a group; the model itself knows nothing of it.

    Attributes:
        layout: which rank does what.
        module: what to call for a forward pass.
        scale: factor on a rank's loss, so that the gradients come out as sums over the shares of the batch.
    """

    def __init__(self, model: nn.Module, layout: Layout, *, gradients: training.GradientPath = "overlapped") -> None:
        """Prepares a model that is the same on every rank.

        Args:
            model: under dp+tp a DiT, which keeps only this rank's share of its layers.
            layout: of the connected ranks.
            gradients: who sums them over the shares: dithc's reducer, or DistributedDataParallel.

        Raises:
            UserError: the ranks cannot share the layers of this model.
        """
        self.layout = layout
        self.scale = 1.0
        self.shards: Shards | None = None
        self._parallel: DistributedDataParallel | None = None
        over = None
        if layout.tensor_size > 1:
            # Imported here: loading DTensor's modules takes time and memory that no other strategy needs.
            from torch.distributed.device_mesh import init_device_mesh

            from dithc.train.strategy_tensor import share_layers

            mesh = init_device_mesh("cpu", (layout.data_size, layout.tensor_size), mesh_dim_names=MESH)
            self.shards = share_layers(model, mesh["clusters"])
            over = mesh["dies"].get_group()
            log.info(f"{len(self.shards.cuts)} parameters are cut over {layout.tensor_size} ranks, others replicated")
        if layout.data_size > 1 and gradients == "ddp":
            self._parallel = DistributedDataParallel(model, process_group=over, gradient_as_bucket_view=True)
            self.scale = float(layout.data_size)  # it averages
            log.info(f"gradients of {layout.data_size} ranks are averaged by DistributedDataParallel")
        is_ours = layout.data_size > 1 and gradients == "overlapped"
        self._reducer = Group.reducer(model.parameters(), over=over) if is_ours else None
        if self._reducer is not None:
            log.info(f"gradients of {layout.data_size} ranks are summed during the backward pass: {self._reducer}")
        self.module: nn.Module = self._parallel or model

    @property
    def writes(self) -> bool:
        """Whether this rank has a part in writing a checkpoint: rank 0, and who shares its layers."""
        return self.layout.data_rank == 0

    @property
    def owns_gradients(self) -> bool:
        """Whether gradients stay where the backward pass leaves them, and are not moved into buffers of another owner."""
        return self._parallel is None and self._reducer is None

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """For the forward and backward of a micro-batch: gradients travel in the backward of the last one only."""
        if self._reducer is not None and last:
            self._reducer.begin()
        if self._parallel is None or last:
            return nullcontext()
        return self._parallel.no_sync()

    def finish(self) -> dict[str, float]:
        """Waits for the gradients of the other shares, after the backward pass of the last micro-batch.

        Returns:
            What it cost, for the metrics of the step; nothing where nothing is known.
        """
        if self._reducer is None:
            return {}
        self._reducer.finish()
        return asdict(self._reducer.exposure)

    def settle(self, x: Tensor, t: Tensor, y: Tensor) -> None:
        """Runs two forward and backward passes without effect on the weights.

        Gradients are put into buckets in the order of a backward pass, known only after the first. The order in which more than
        two ranks are summed may depend on the place in a bucket, so a run that resumes would round its first step unlike one
        that went on; after this, every step has the final buckets.

        Args:
            x: (N, C, height, width), any input of the model.
            t: (N) timesteps.
            y: (N) labels.
        """
        if self._parallel is None and self._reducer is None:
            return
        for _ in range(2):
            with self.accumulating(last=True):
                output: Tensor = self.module(x, t, y)
                output.float().square().mean().backward()  # type: ignore[no-untyped-call]
            self.finish()
            if self._reducer is not None:
                self._reducer.record()
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.grad = None

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """The norm of the gradient of the whole model, each number of it counted once, from this rank's part by name."""
        if self.shards is None:
            return math.sqrt(_sum_of_squares(list(gradients.values())))
        cut = [value for name, value in gradients.items() if name in self.shards.cuts]
        same = [value for name, value in gradients.items() if name not in self.shards.cuts]
        return math.sqrt(self.shards.sum_over_group(_sum_of_squares(cut)) + _sum_of_squares(same))

    def gather(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Whole tensors by name, on rank 0, from the parts of all ranks that write; nothing on the others."""
        return tensors if self.shards is None else self.shards.gather(tensors)

    def cut(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """This rank's part of whole tensors by name."""
        return tensors if self.shards is None else self.shards.cut(tensors)


def _sum_of_squares(tensors: Sequence[Tensor]) -> float:
    return hcops.optimizer.sum_of_squares(tensors)
