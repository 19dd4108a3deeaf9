"""Distribution of a training run over ranks: cftp, dp, dp+tp. Model, loop and checkpoints only use this interface."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from dithc.config import training
from dithc.core.logging import get_logger, user_error
from dithc.core.tensor_files import TensorPiece
from dithc.engine import automem, hcops
from dithc.engine.comm import Group, Reducer, traffic
from dithc.engine.hardware import discover_machine
from dithc.train.muon_matrices import MatrixOwnership
from dithc.train.state_placement import Allocator
from dithc.train.strategies.consistency import check_model, check_trained, check_used, union_over_ranks
from dithc.train.strategies.first_pass import ForwardRecorder, mean_square, preserve_buffers
from dithc.train.strategies.layout import RankGrid, layout_of
from dithc.train.strategies.stages import PipelineStage
from dithc.train.strategies.tensor_parallel import ShardOwnership, TensorShards, shard_layers
from dithc.train.strategies.zero import RunOwnership, ShardedState

log = get_logger(__name__)
MESH = ("dies", "clusters")
STAGE_MESH = ("stages", "ranks")


def make_rank_grid(group: Group, name: training.StrategyName, *, stages: int = 1) -> RankGrid:
    """Return the grid of a strategy on a group and log it; collective. UserError for ranks that dies or stages do not divide."""
    cores = discover_machine().visible_cores
    local = (group.node, group.rank - group.local_rank, {core.die for core in cores}, {core.cluster for core in cores})
    gathered = group.gather_objects(local)
    # A bound rank only detects its own cores; the ranks of a node together detect all cores in use.
    dies = set[int]().union(*(dies for node, _, dies, _ in gathered if node == group.node))
    clusters = set[int]().union(*(clusters for node, _, _, clusters in gathered if node == group.node))
    firsts = [first for _, first, _, _ in gathered]
    if group.size == 1 < stages:
        log.info(f"pipeline_stages {stages} is off: a single rank holds the complete network")
        stages = 1
    layout = layout_of(name, rank=group.rank, size=group.size, first_ranks=firsts, dies=len(dies) or 1, stages=stages)
    num_designed = len(dies if name == "cftp" else clusters) or 1
    log.info(
        f"strategy {name}: {group.size} rank(s), {group.local_size} on this node of {len(dies) or 1} die(s) and "
        f"{len(clusters) or 1} cluster(s), designed for {num_designed}; {layout.data_size} share(s) of the global batch, "
        f"{layout.tensor_size} rank(s) per layer, {layout.num_stages} stage(s)"
    )
    return layout


class Strategy:
    """Wrapper that trains any module on the ranks of a group.

    Example::

        with comm.init_distributed() as group:
            torch.manual_seed(0)                               # the same weights on all ranks
            strategy = Strategy(Net(), group, sharding="zero1")
            net = strategy.prepare(torch.zeros(1, 3, 32, 32))  # example input of the module
            optimizer = Optimizer(strategy, lr=1e-3)
            for x, y in batches(group.rank, group.size):       # this rank's share
                strategy.backward(cross_entropy(net(x), y))    # gradients of the mean over all shares
                optimizer.step()

    After each step, buffers (batch norm) equal those of rank 0. A layer may be used on some ranks only; its gradient is
    their sum.

    Attributes:
        module: callable for a forward pass of `model`.
        is_summed: whether summed gradients await an update.
        scale: factor on a rank's loss, so that gradients are sums over the shares.
        meter: communication costs of a step; `finish` resets it.
        sharded_state: this rank's share of the optimizer state after `prepare`; None if unsharded.
        stage: this rank's part of a model in stages (pipeline parallelism); None for the complete model.
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Group | RankGrid | None = None,
        *,
        gradients: training.GradientMode = "overlapped",
        sharding: training.Sharding = "none",
    ) -> None:
        """Prepare a model that is equal on every rank; collective.

        Args:
            model: module with trained parameters in fp32. dp+tp requires a DiT and keeps this rank's shards. Apply
                AutoMem before.
            ranks: group (strategy cftp), layout of another strategy, or None for this process alone.
            gradients: reduction: dithc's reducer, or DistributedDataParallel.
            sharding: zero1 shards the optimizer state over all ranks, node over the ranks of a node; zero2 also shards
                the summed gradients.

        Raises:
            UserError: the model differs between ranks, or its layers or the state cannot be shared.
        """
        layout = make_rank_grid(ranks, "cftp") if isinstance(ranks, Group) else ranks or RankGrid()
        self.layout, self.model = layout, model
        self.is_summed = self._is_prepared = False
        self._statistics: list[str] = []
        shared = _is_sharded(sharding, layout=layout, gradients=gradients)
        if layout.size > 1:
            check_trained(model)
            check_model(model)
        owners: Any = None
        if shared and sharding == "node":
            owners, _ = dist.new_subgroups_by_enumeration(layout.nodes)  # type: ignore[no-untyped-call]
        self.scale = 1.0
        self.shards: TensorShards | None = None
        self.stage: PipelineStage | None = None
        self._parallel: DistributedDataParallel | None = None
        process_group = None
        if layout.num_stages > 1:
            mesh = init_device_mesh("cpu", (layout.num_stages, layout.data_size), mesh_dim_names=STAGE_MESH)
            self.stage = PipelineStage(model, mesh[STAGE_MESH[0]].get_group())
            process_group = mesh[STAGE_MESH[1]].get_group()
            log.info(str(self.stage))
        self._ranks = process_group  # that sum their gradients; None for all
        self.sharded_state: ShardedState | None = None
        if shared:
            self.sharded_state = ShardedState(model, sharding=sharding, group=process_group, owners=owners)
        if layout.tensor_size > 1:
            mesh = init_device_mesh("cpu", (layout.data_size, layout.tensor_size), mesh_dim_names=MESH)
            self.shards = shard_layers(model, mesh["clusters"].get_group())
            process_group = mesh["dies"].get_group()
            log.info(f"{len(self.shards.cuts)} parameters are cut over {layout.tensor_size} ranks, others replicated")
        if layout.data_size > 1 and gradients == "ddp":
            self._parallel = DistributedDataParallel(model, process_group=process_group, gradient_as_bucket_view=True)
            self.scale = float(layout.data_size)  # it averages
            log.info(f"gradients of {layout.data_size} ranks are averaged by DistributedDataParallel")
        self._reducer = None if self.sharded_state is None else self.sharded_state.reducer
        if self._reducer is None and layout.data_size > 1 and gradients == "overlapped":
            self._reducer = Reducer(model.parameters(), group=process_group)
        if self._reducer is not None:
            log.info(f"gradients of {layout.data_size} ranks are summed during the backward pass: {self._reducer}")
        self.meter = traffic.CommMeter() if self._reducer is None else self._reducer.meter
        self.module: nn.Module = self._parallel or model
        if self.sharded_state is not None and (manager := automem.get_manager(model)) is not None:
            manager.call_before_load(self.sharded_state.wait_for)

    @property
    def owns_gradients(self) -> bool:
        """True if gradients stay outside of the buffers of reducers."""
        return self._parallel is None and self._reducer is None

    def expect(self, images: Iterable[int]) -> None:
        """Announce the micro-batches of a step by their numbers of images."""
        if self.stage is not None:
            self.stage.expect(images)

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """Wrap each pass of a micro-batch: DistributedDataParallel exchanges the gradients of the last one only."""
        return nullcontext() if self._parallel is None or last else self._parallel.no_sync()

    def begin_backward(self, *, last: bool) -> None:
        """Announce a backward pass: the last one exchanges gradients, with zero2 each one."""
        self._wait_for_updates()  # which use the previous gradients
        if self._reducer is not None and (last or self._reducer.releases):
            self._reducer.begin()

    def finish(self) -> dict[str, float]:
        """Wait for all gradients after the last micro-batch; return the communication costs, if measured."""
        waited = {} if self.stage is None else self.stage.take_costs()
        if self._reducer is None:
            measured = self.meter.take().metrics()
            return waited | (measured if any(measured.values()) else {})
        self._reducer.finish()
        if self._statistics:
            buffers = dict(self.model.named_buffers())
            for name in self._statistics:
                dist.broadcast(buffers[name], src=0)
        return waited | self._reducer.exposure.metrics()

    def backward(self, loss: Tensor, *, over: float | None = None, last: bool = True) -> dict[str, float]:
        """Run the backward pass of this rank's share.

        Gradients are then the global batch's on all ranks.

            for part in parts:                                              # micro-batches
                strategy.backward(mean_loss(part), over=group.size * len(parts), last=part is parts[-1])

        Args:
            loss: scalar; the mean, for equal shares.
            over: divisor of the sum of all losses of a step, None for the number of shares. Sums over samples: the
                global batch.
            last: whether this is the last pass of the step, after which gradients are exchanged.

        Returns:
            The communication costs, as `finish`.

        Raises:
            UserError: `prepare` was not called, or no update used the previous gradients.
        """
        if self.layout.size > 1:
            Group.distributed()
        if not self._is_prepared and not self.owns_gradients:
            raise user_error(
                "backward pass on several ranks",
                got="a strategy before `prepare`",
                expected="one call of `strategy.prepare(example)` before the first step",
                fix="call it once, with arguments of the module, before creating the optimizer",
            )
        if self.is_summed and self._has_gradients():
            raise user_error(
                "backward pass of a further step",
                got="unused gradients of the previous step",
                expected="an update after each step",
                fix="call `optimizer.step()` after the backward pass (another optimizer's step() and zero_grad()); for "
                "micro-batches pass `last=False` except in the last pass of a step",
            )
        self.is_summed = False
        self.begin_backward(last=last)
        with self.accumulating(last=last):
            (loss * (self.scale / (over or self.layout.data_size))).backward()  # type: ignore[no-untyped-call]
        if not last:
            return {}
        cost = self.finish()
        self.is_summed = True
        return cost

    @property
    def is_exchanging(self) -> bool:
        """True if this object exchanges the gradients between ranks."""
        return self._reducer is not None

    def _has_gradients(self) -> bool:
        """Return whether gradients of the last step remain; zeroed gradients do not count."""
        if self.sharded_state is not None:
            return True
        gradients = (parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)
        return any(bool(gradient.any()) for gradient in gradients)

    def wait_for_weights(self) -> None:
        """Wait until this rank's weights and state are complete, before access outside of a pass."""
        if self.sharded_state is not None:
            self.sharded_state.wait_for_weights()
        self._wait_for_updates()

    def _wait_for_updates(self) -> None:
        if (manager := automem.get_manager(self.model)) is not None:
            manager.wait_for_updates()

    def load_from_module(self) -> None:
        """Use externally assigned weights as the exact weights of all ranks."""
        if self.sharded_state is not None:
            self.sharded_state.load_from_module()

    def relocate(self, place: Allocator) -> None:
        """Replace the reduction buffer by the copy that `place` returns for `gradients`."""
        if self._reducer is not None:
            self._reducer.relocate(partial(place, "gradients"))

    def prepare(self, *example: Any, loss_of: Callable[[Any], Tensor] = mean_square, **named: Any) -> nn.Module:
        """Run a few passes to fix the gradient buckets; collective, once.

        Weights, buffers and random state are unchanged. The order of a backward pass determines the buckets, and
        thereby the rounding of sums over more than two ranks. Without this call a resumed run would round its first
        step differently. The call also creates the ZeRO-1 shares: create moments after it.

            net = strategy.prepare(tokens)
            net = strategy.prepare(input_ids=tokens, labels=tokens, loss_of=lambda output: output.loss)

        Args:
            example: arguments of the module, for example one sample, of the same type on every rank.
            loss_of: function that returns a scalar that depends on the complete output.
            named: keyword arguments of the module.

        Returns:
            `module`, the callable for a forward pass.

        Raises:
            UserError: `prepare` was called before, or ranks have gradients of different parameters.
        """
        if self._is_prepared:
            raise user_error(
                "`prepare` of a strategy",
                got="a second call",
                expected="one call, before the first step",
                fix="call it once, after creating the strategy; a new model requires a new strategy",
            )
        self._is_prepared = True
        if self.owns_gradients:
            return self.module
        recorder, manager = ForwardRecorder(self.model), automem.get_manager(self.model)
        with preserve_buffers(self.model) as statistics, nullcontext() if manager is None else manager.paused():
            if self.sharded_state is not None:
                with torch.no_grad(), recorder:  # a separate pass: a module with hooks may compute differently
                    self.module(*example, **named)
            for _ in range(2):
                loss = loss_of(self.module(*example, **named))
                self.begin_backward(last=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.finish()
                if self._reducer is not None:
                    self._reducer.record()
                for parameter in self.module.parameters():
                    parameter.grad = None
        self._statistics = statistics if self._reducer is None else union_over_ranks(statistics)
        self._check_used()
        if self.sharded_state is not None:
            self.sharded_state.create_shards(parts=recorder.parts, early=recorder.early)
            log.info(str(self.sharded_state))
        return self.module

    def _check_used(self) -> None:
        if self._reducer is None:
            return
        name_of = {id(value): name for name, value in self.model.named_parameters()}
        names = [name_of[id(value)] for value in self._reducer.parameters]
        if unused := check_used(names, [names[number] for number in self._reducer.landed], group=self._ranks):
            log.warning(
                f"{len(unused)} of {len(names)} parameters, including {unused[0]}, have no gradient of the example "
                "passed to `prepare`: they are not updated until they have one"
            )

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Return the norm of the complete gradient from this rank's part by name. Each number counts once."""
        norm = self._norm(gradients)
        return norm if self.stage is None else self.stage.norm(norm)

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        if self.sharded_state is not None:
            return self.sharded_state.norm(gradients)
        sum_of_squares = hcops.optimizer.sum_of_squares
        if self.shards is None:
            return math.sqrt(sum_of_squares(list(gradients.values())))
        sharded = [value for name, value in gradients.items() if name in self.shards.cuts]
        replicated = [value for name, value in gradients.items() if name not in self.shards.cuts]
        return math.sqrt(self.shards.sum_over_group(sum_of_squares(sharded)) + sum_of_squares(replicated))

    def ownership(self) -> MatrixOwnership:
        """Return the distribution of matrices over ranks, after `prepare`."""
        rank, size = self.layout.rank, self.layout.size
        if self.sharded_state is not None:
            reducer, owners = self.sharded_state.reducer, self.sharded_state.owners
            ranks: dict[str, Any] = {"rank": reducer.rank, "size": reducer.size, "span": reducer.size, "group": owners}
            return RunOwnership(**ranks, meter=self.meter, sharded=self.sharded_state)
        if self.shards is not None:
            return ShardOwnership(rank, size, span=self.layout.tensor_size, meter=self.meter, shards=self.shards)
        if self.stage is not None:
            ranks = {"rank": self.layout.data_rank, "size": self.layout.data_size, "group": self._ranks}
            return MatrixOwnership(**ranks, meter=self.meter)
        return MatrixOwnership(rank, size, meter=self.meter)

    def pieces(self, local: list[TensorPiece]) -> list[TensorPiece]:
        """Return this rank's tensors as pieces of the complete model's."""
        return local if self.shards is None else self.shards.pieces(local)

    def cut(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return this rank's part of complete tensors by name, cut on access."""
        if self.stage is not None:
            return self.stage.select(tensors)
        return tensors if self.shards is None else self.shards.cut(tensors)


def _is_sharded(sharding: training.Sharding, *, layout: RankGrid, gradients: training.GradientMode) -> bool:
    """Return whether the ranks shard the optimizer state; log a request that cannot be met."""
    if sharding == "none":
        return False
    most = max(map(len, layout.nodes), default=1) if sharding == "node" else layout.data_size * layout.tensor_size
    if most == 1:
        log.info(f"sharding {sharding} is off: a single rank cannot share the optimizer state")
        return False
    if layout.name == "dp+tp" or gradients == "ddp":
        raise user_error(
            f"machine.sharding {sharding}",
            got=f"strategy {layout.name} with gradient_sync: {gradients}",
            expected="strategy cftp or dp with gradient_sync: overlapped",
            fix="set `sharding: none`, or another strategy and `gradient_sync: overlapped`",
        )
    return True
