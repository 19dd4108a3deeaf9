"""Sharded weights: each rank updates a share of one buffer, and gathers overlap with the next forward pass."""

from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dithc.core.logging import user_error
from dithc.engine.comm.gradients.buckets import flat_buffer
from dithc.engine.comm.gradients.reducer import Reducer
from dithc.engine.comm.settings import CommConfig


class ShardedParameters:
    """Parameters of a reducer as views of one buffer, in the order and the buckets of their gradients.

    A rank updates its share of a bucket and calls `send`; the shares of other ranks arrive meanwhile. Parts of the
    model wait for their buckets when they are called. The buckets should therefore be sent in reverse order: the last
    of the backward pass is the first of the forward pass. The parts are the outermost modules inside the model that are
    called. The model itself waits for parameters that belong to no part, or that are read before their part is called.
    Other readers of weights must call `wait` first.

    With bf16 on the wire, every rank computes with weights rounded to bf16 (stored as fp32), including the rank that
    updates them, so that all ranks compute with the same weights. The exact weights of a rank's share are stored
    separately; they are updated and saved.

    Attributes:
        buffer: weights used for computation, fp32.
        shares: exact weights of this rank's shares of all buckets, concatenated; None if `buffer` holds them.
    """

    def __init__(
        self,
        model: nn.Module,
        reducer: Reducer,
        *,
        parts: Iterable[nn.Module],
        early: Iterable[Tensor] = (),
        owners: Any = None,
    ) -> None:
        """Move the weights into the buffer; collective.

        Args:
            model: module that is called for a forward pass; has all parameters of the reducer.
            reducer: reducer with `scatter` in its final arrangement.
            parts: modules inside the model that are called, each before any of its parameters is read.
            early: parameters that are read outside of the parts that hold them.
            owners: ranks that divide the sums of the reducer; None for all ranks.

        Raises:
            UserError: bf16 weights are requested with another backend than dithc-mpi.
        """
        # A separate group: agreement between two steps must not queue behind weights in the order of one group.
        self._group = owners or dist.new_group()
        self._meter, self.rank, self.size = reducer.meter, reducer.rank, reducer.size
        self._parameters, self._arrangement = reducer.parameters, reducer.arrangement
        self._works: dict[int, Any] = {}
        cuts = [bucket.share(self.rank, self.size) for bucket in self._arrangement.buckets]
        self._offsets = [0, *accumulate(cut.stop - cut.start for cut in cuts)]
        self.shares = flat_buffer(self._offsets[-1]) if _is_rounded(self._group) else None
        self.buffer = flat_buffer(self._arrangement.length)
        with torch.no_grad():
            for parameter, start in zip(self._parameters, self._arrangement.starts, strict=True):
                view = self.buffer[start : start + parameter.numel()].view(parameter.shape)
                view.copy_(parameter)
                parameter.data = view
        self.load_from_module()
        self._bucket_of = bucket_of = {
            id(self._parameters[number]): index
            for index, bucket in enumerate(self._arrangement.buckets)
            for number in bucket.members
        }
        remaining, early_ids = set(map(id, model.parameters())), set(map(id, early))
        for part in parts:
            part_ids = set(map(id, part.parameters()))
            self._hook(part, {bucket_of[key] for key in part_ids if key in bucket_of})
            remaining -= part_ids
        self._hook(model, {bucket_of[key] for key in remaining | early_ids if key in bucket_of})

    def load_from_module(self) -> None:
        """Use the content of `buffer`, equal on every rank, as exact weights, after initialization or loading."""
        if self.shares is not None:
            for bucket, cut in enumerate(self._arrangement.buckets):
                self.share(bucket).copy_(self.buffer[cut.share(self.rank, self.size)])
                whole = self.buffer[cut.start : cut.stop]
                whole.copy_(whole.bfloat16())

    def share(self, bucket: int) -> Tensor:
        """Return a view of the exact weights of this rank's share of a bucket."""
        if self.shares is not None:
            return self.shares[self._offsets[bucket] : self._offsets[bucket + 1]]
        return self.buffer[self._arrangement.buckets[bucket].share(self.rank, self.size)]

    def send(self, bucket: int) -> None:
        """Start to gather the shares of a bucket; all ranks use the same order of buckets."""
        span, share = self._arrangement.buckets[bucket], self.share(bucket)
        self._meter.sent(share.nbytes if self.shares is None else share.nbytes // 2)
        whole = self.buffer[span.start : span.stop]
        self._works[bucket] = dist.all_gather_single(whole, share, group=self._group, async_op=True)

    def wait(self, buckets: frozenset[int] | None = None) -> None:
        """Wait until the weights of these buckets, or of all, are complete; TimeoutError or RuntimeError without a rank."""
        late = [bucket for bucket in self._works if buckets is None or bucket in buckets]
        for bucket in late:
            self._meter.wait(self._works.pop(bucket))
            members = self._arrangement.buckets[bucket].members
            torch.autograd.graph.increment_version([self._parameters[number] for number in members])

    def wait_for(self, parameters: Iterable[Tensor]) -> None:
        """Wait until these weights are complete. Cheap if no weights are in transit."""
        if self._works:
            buckets = (self._bucket_of.get(id(parameter)) for parameter in parameters)
            self.wait(frozenset(bucket for bucket in buckets if bucket is not None))

    def _hook(self, part: nn.Module, buckets: set[int]) -> None:
        if buckets:
            part.register_forward_pre_hook(partial(_wait_for_weights, self, frozenset(buckets)))


def _is_rounded(group: Any) -> bool:
    """Return whether weights move as bf16; if so, configure the group to round."""
    if CommConfig.current().param_gather_dtype == "fp32":
        return False
    collectives = getattr(group, "collectives", None)
    if collectives is None:
        raise user_error(
            "weights on the wire: bf16",
            got=f"backend {dist.get_backend(group)}",
            expected="dithc-mpi, which rounds them on their way",
            fix="leave DITHC_COMM_BACKEND unset, or set `param_gather_dtype: fp32`",
        )
    collectives.gather_wire = torch.bfloat16
    return True


def _wait_for_weights(sharded: ShardedParameters, buckets: frozenset[int], _: nn.Module, __: Any) -> None:
    sharded.wait(buckets)
