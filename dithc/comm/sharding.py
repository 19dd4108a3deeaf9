"""Weights of which every rank updates a share: they lie in one buffer, and travel while the next forward pass already runs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dithc.comm.buckets import flat_buffer
from dithc.comm.reducer import Reducer


class SharedWeights:
    """The parameters of a reducer as views of one buffer, in the order and the buckets of their gradients.

    A rank changes its share of a bucket and calls `send`; the others' shares arrive meanwhile. Parts of the model wait for
    their own buckets when they are called, so the buckets are to be sent in reverse order: the last of the backward pass is
    the first of the forward pass. The parts are the children of the model, and for a list of modules its elements; a parameter
    must be read by the part that holds it, while that runs. Who else reads weights calls `wait` before.

    Attributes:
        buffer: the weights, fp32.
        rank: of this process among those that share them.
        size: number of those.
    """

    def __init__(self, model: nn.Module, reducer: Reducer) -> None:
        """Moves the weights into the buffer; collective.

        Args:
            model: that is called for a forward pass; has all parameters of the reducer.
            reducer: with `scatter`, arranged for good.
        """
        # A group of its own: what the ranks agree on between two steps must not wait for weights in the row of one group.
        self._group = dist.new_group()
        self._meter, self.rank, self.size = reducer.meter, reducer.rank, reducer.size
        self._parameters, self._arrangement = reducer.parameters, reducer.arrangement
        self._works: dict[int, Any] = {}
        self.buffer = flat_buffer(self._arrangement.length)
        with torch.no_grad():
            for parameter, start in zip(self._parameters, self._arrangement.starts, strict=True):
                view = self.buffer[start : start + parameter.numel()].view(parameter.shape)
                view.copy_(parameter)
                parameter.data = view
        bucket_of = {
            id(self._parameters[number]): index
            for index, bucket in enumerate(self._arrangement.buckets)
            for number in bucket.members
        }
        everything = dict.fromkeys(model.parameters())
        for part in _parts(model):
            mine = dict.fromkeys(part.parameters())
            self._hook(part, {bucket_of[id(one)] for one in mine if id(one) in bucket_of})
            everything = {one: None for one in everything if one not in mine}
        self._hook(model, {bucket_of[id(one)] for one in everything if id(one) in bucket_of})

    def share(self, bucket: int) -> Tensor:
        """This rank's share of a bucket: a view."""
        return self.buffer[self._arrangement.buckets[bucket].share(self.rank, self.size)]

    def send(self, bucket: int) -> None:
        """Starts to give a bucket's share to the other ranks, and to get theirs; the same order on every rank."""
        cut, own = self._arrangement.buckets[bucket], self.share(bucket)
        self._meter.sent(own.nbytes)
        whole = self.buffer[cut.start : cut.stop]
        self._works[bucket] = dist.all_gather_single(whole, own, group=self._group, async_op=True)

    def wait(self, buckets: frozenset[int] | None = None) -> None:
        """Returns when the weights of these buckets, or all, are complete.

        Raises:
            TimeoutError, RuntimeError: another rank is gone or late.
        """
        late = [bucket for bucket in self._works if buckets is None or bucket in buckets]
        for bucket in late:
            self._meter.wait(self._works.pop(bucket))
            members = self._arrangement.buckets[bucket].members
            torch.autograd.graph.increment_version([self._parameters[number] for number in members])

    def _hook(self, part: nn.Module, buckets: set[int]) -> None:
        if buckets:
            part.register_forward_pre_hook(partial(_wait_before, self, frozenset(buckets)))


def _wait_before(weights: SharedWeights, buckets: frozenset[int], _: nn.Module, __: Any) -> None:
    weights.wait(buckets)


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that are called one after the other in a forward pass."""
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield child
