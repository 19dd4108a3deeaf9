"""How ranks share a training: cftp, dp, dp+tp; the model, the loop and the checkpoints know of it only through this file.

Legend: N batch, C channels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dithc import hcops
from dithc.comm import Group, Meter
from dithc.config import training
from dithc.hardware import discover
from dithc.log import logger, problem
from dithc.tensors import Piece
from dithc.train.matrices import Holding
from dithc.train.optimizer import Home, RunHolding, Zero
from dithc.train.strategies.layout import Layout, layout_of, sentence

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from dithc.train.strategies.tensor import Shards

log = logger(__name__)
MESH = ("dies", "clusters")


def layout_on(group: Group, name: training.StrategyName) -> Layout:
    """The grid of ranks of a strategy on a group, said in the log; collective.

    Raises:
        UserError: dp+tp on ranks that the dies of a node cannot share equally.
    """
    cores = discover().visible_cores
    own = (group.node, group.rank - group.local_rank, {core.die for core in cores}, {core.cluster for core in cores})
    seen = group.gather_objects(own)
    # A rank that is bound to its cores sees no other: together the ranks of a node see all that they use.
    dies = set[int]().union(*(dies for node, _, dies, _ in seen if node == group.node))
    clusters = set[int]().union(*(clusters for node, _, _, clusters in seen if node == group.node))
    firsts = [first for _, first, _, _ in seen]
    layout = layout_of(name, rank=group.rank, size=group.size, first_ranks=firsts, dies=len(dies) or 1)
    log.info(sentence(layout, dies=len(dies) or 1, clusters=len(clusters) or 1, ranks_on_node=group.local_size))
    return layout


class Strategy:
    """Wraps a model for training on the ranks of a group; the model itself knows nothing of it.

    Attributes:
        layout: which rank does what.
        module: what to call for a forward pass.
        scale: factor on a rank's loss, so that the gradients come out as sums over the shares of the batch.
        meter: counts what the exchange of a step costs; `finish` empties it.
        zero: which share of the optimizer's state this rank keeps, once `settle` was called; None where it keeps all.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        *,
        gradients: training.GradientPath = "overlapped",
        sharding: training.Sharding = "none",
    ) -> None:
        """Prepares a model that is the same on every rank.

        Args:
            model: under dp+tp a DiT, which keeps only this rank's share of its layers.
            layout: of the connected ranks.
            gradients: who sums them over the shares: dithc's reducer, or DistributedDataParallel.
            sharding: whether each rank keeps the optimizer's state of a share of the weights only.

        Raises:
            UserError: the ranks cannot share the layers of this model, or this strategy the state.
        """
        self.layout = layout
        self.zero = Zero(model) if _is_shared(sharding, layout=layout, gradients=gradients) else None
        self.scale = 1.0
        self.shards: Shards | None = None
        self._parallel: DistributedDataParallel | None = None
        self._mesh: DeviceMesh | None = None
        over = None
        if layout.tensor_size > 1:
            # Imported here: loading DTensor's modules takes time and memory that no other strategy needs.
            from torch.distributed.device_mesh import init_device_mesh

            from dithc.train.strategies.tensor import share_layers

            mesh = init_device_mesh("cpu", (layout.data_size, layout.tensor_size), mesh_dim_names=MESH)
            self._mesh = mesh["clusters"]
            self.shards = share_layers(model, self._mesh)
            over = mesh["dies"].get_group()
            log.info(f"{len(self.shards.cuts)} parameters are cut over {layout.tensor_size} ranks, others replicated")
        if layout.data_size > 1 and gradients == "ddp":
            self._parallel = DistributedDataParallel(model, process_group=over, gradient_as_bucket_view=True)
            self.scale = float(layout.data_size)  # it averages
            log.info(f"gradients of {layout.data_size} ranks are averaged by DistributedDataParallel")
        self._reducer = None if self.zero is None else self.zero.reducer
        if self._reducer is None and layout.data_size > 1 and gradients == "overlapped":
            self._reducer = Group.reducer(model.parameters(), over=over)
        if self._reducer is not None:
            log.info(f"gradients of {layout.data_size} ranks are summed during the backward pass: {self._reducer}")
        self.meter = Meter() if self._reducer is None else self._reducer.meter
        self.module: nn.Module = self._parallel or model

    @property
    def owns_gradients(self) -> bool:
        """Whether gradients stay where the backward pass leaves them, and are not moved into buffers of another owner."""
        return self._parallel is None and self._reducer is None

    def share(self, other: nn.Module) -> None:
        """Leaves this rank its share of a second network of the same layers, which is not trained, where ranks share layers."""
        if self._mesh is not None:
            from dithc.train.strategies.tensor import share_layers

            share_layers(other, self._mesh)

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
            What the exchange of the step cost, for its metrics, that of weights and of matrices since the step before
            included, that of gradients only where dithc's reducer sums them; nothing where nothing was measured.
        """
        if self._reducer is None:
            measured = self.meter.take().metrics()
            return measured if any(measured.values()) else {}
        self._reducer.finish()
        return self._reducer.exposure.metrics()

    def ready(self) -> None:
        """Returns when the weights are complete on this rank: for whoever reads or writes them outside of a forward pass."""
        if self.zero is not None:
            self.zero.ready()

    def adopt(self) -> None:
        """Takes the weights that the model was given from outside for the exact ones of all ranks."""
        if self.zero is not None:
            self.zero.adopt()

    def ready_for(self, parameters: Iterable[Tensor]) -> None:
        """Returns when these weights are complete on this rank: for whoever reads them before the layer that holds them runs."""
        if self.zero is not None:
            self.zero.ready_for(parameters)

    def move(self, moved: Home) -> None:
        """Has the buffer in which ranks sum gradients replaced by the one that `moved` returns for `gradients` and it."""
        if self._reducer is not None:
            self._reducer.move(partial(moved, "gradients"))

    def settle(self, x: Tensor, t: Tensor, y: Tensor) -> None:
        """Runs two forward and backward passes without effect on the weights.

        Gradients are put into buckets in the order of a backward pass, known only after the first. The order in which more than
        two ranks are summed may depend on the place in a bucket, so a run that resumes would round its first step unlike one
        that went on; after this, every step has the final buckets. With shared state, the shares are made now: what is kept of a
        share (moments, average) is to be made after this.

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
        if self.zero is not None:
            self.zero.share()
            log.info(str(self.zero))

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """The norm of the gradient of the whole model, each number of it counted once, from this rank's part by name."""
        if self.zero is not None:
            return self.zero.norm(gradients)
        if self.shards is None:
            return math.sqrt(_sum_of_squares(list(gradients.values())))
        cut = [value for name, value in gradients.items() if name in self.shards.cuts]
        same = [value for name, value in gradients.items() if name not in self.shards.cuts]
        return math.sqrt(self.shards.sum_over_group(_sum_of_squares(cut)) + _sum_of_squares(same))

    def holding(self) -> Holding:
        """Which rank has what of the matrices among the weights, once `settle` was called."""
        rank, size = self.layout.rank, self.layout.size
        if self.zero is not None:
            return RunHolding(rank, size, span=size, meter=self.meter, zero=self.zero)
        if self.shards is not None:
            from dithc.train.strategies.tensor import ShardHolding

            return ShardHolding(rank, size, span=self.layout.tensor_size, meter=self.meter, shards=self.shards)
        return Holding(rank, size, meter=self.meter)

    def pieces(self, held: list[Piece]) -> list[Piece]:
        """What this rank holds, as pieces of the whole model's tensors."""
        return held if self.shards is None else self.shards.pieces(held)

    def cut(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """This rank's part of whole tensors by name, each cut when it is asked for."""
        return tensors if self.shards is None else self.shards.cut(tensors)


def _is_shared(sharding: training.Sharding, *, layout: Layout, gradients: training.GradientPath) -> bool:
    """Whether the ranks share the optimizer's state, said in the log where they were asked to and do not."""
    if sharding == "none":
        return False
    if layout.size == 1:
        log.info(f"sharding {sharding} is off: one rank has nobody to share the optimizer's state with")
        return False
    if layout.name == "dp+tp" or gradients == "ddp":
        raise problem(
            f"machine.sharding {sharding}",
            got=f"strategy {layout.name} with gradients: {gradients}",
            expected="strategy cftp or dp with gradients: overlapped",
            remedy="set `sharding: none`, or another strategy and `gradients: overlapped`",
        )
    return True


def _sum_of_squares(tensors: Sequence[Tensor]) -> float:
    return hcops.optimizer.sum_of_squares(tensors)
