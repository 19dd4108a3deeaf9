"""Gradient reduction over all ranks that overlaps with the backward pass.

All gradients are in one buffer, in the order in which the backward pass computes them. The buffer is partitioned into
buckets. A bucket with complete gradients is passed to the communication thread. All ranks pass their buckets in the
same order, independent of the order of completion; otherwise ranks would deadlock on each other's buckets.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from dithc.core.logging import user_error
from dithc.engine import hcops, numa
from dithc.engine.comm.gradients.buckets import ALIGNMENT, BucketLayout, arrange, flat_buffer
from dithc.engine.comm.traffic import CommMeter, Exposure

IN_FLIGHT = 4  # buckets whose gradients are kept while they are summed, with `releases`


class Reducer:
    """Reducer that sums the gradients of parameters over the ranks of a group.

    Call `begin` before the backward pass whose gradients are to be exchanged, and `finish` after it. Then every `.grad`
    is the sum over the ranks, or None if no rank has a gradient. Without `begin`, gradients accumulate on this rank
    alone.

    With `scatter`, a rank receives the sums of its share of each bucket only, in `buffer`, and every `.grad` is None.
    Outside of the share, the buffer may hold the local gradient. With `releases` (ZeRO-2), this memory is returned to the system
    after each sum, and every micro-batch is exchanged: call `begin` before each, and `finish` after the last.

        reducer = Reducer(model.parameters())  # after `comm.connect_ranks` or `comm.init_distributed`, of several ranks
        reducer.begin()
        loss.backward()
        reducer.finish()                       # every .grad is the sum over the ranks
        reducer.record()                       # once: buckets are sent in the order of gradient computation from now on

    Attributes:
        parameters: trained parameters; the index in this list is the parameter's number.
        arrangement: layout of the parameters in the buffer.
        buffer: all gradients, fp32, followed by one count per parameter: the number of ranks that used it.
        rank, size: of the ranks that divide the sums.
        used: whether any rank had a gradient in the last exchange, by number.
        landed: numbers of the parameters with a local gradient in the last exchange, in order of computation.
        meter: accumulator of communication costs.
        exposure: cost of the last exchange.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        *,
        group: Any = None,
        bucket_bytes: int | None = None,
        scatter: bool = False,
        owners: Any = None,
        releases: bool = False,
    ) -> None:
        """Allocate the buffer in reverse order of the parameters, until `record`.

        Args:
            parameters: parameters to train; the same on every rank, fp32.
            group: group of torch.distributed; None for all ranks.
            bucket_bytes: maximum size of a bucket; None for the rule of `buckets.py`.
            scatter: whether each rank receives only its share of the sums.
            owners: group that divides the sums into shares, with `scatter`; None for all ranks.
            releases: whether the memory of gradients outside of the share is released after each sum; with `scatter`.
        """
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._number = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self._group, self._bucket_bytes, self._scatter, self.releases = group, bucket_bytes, scatter, releases
        self._owners = owners
        self._earlier: list[Tensor] = []  # sums of earlier micro-batches of the step, of this rank's shares
        self.rank, self.size = dist.get_rank(owners or group), dist.get_world_size(owners or group)
        self._active = False
        self.landed: list[int] = []
        self._done: set[int] = set()
        self.used: list[bool] = []
        self.meter, self.exposure = CommMeter(), Exposure()
        self._arrange(list(reversed(range(len(self.parameters)))))
        weak_self = weakref.ref(
            self
        )  # torch hides its hooks from the garbage collector, so a cycle would never be freed

        def on_gradient(parameter: Tensor) -> None:
            if (reducer := weak_self()) is not None:
                reducer._on_gradient(parameter)

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        sizes = sorted(bucket.megabytes for bucket in self.arrangement.buckets)
        return f"{len(sizes)} buckets of {sizes[0]:.1f} to {sizes[-1]:.1f} MB"

    def record(self) -> None:
        """Arrange the buffer in the gradient order of rank 0's last exchanged backward pass.

        Gradients move to the new buffer. With `scatter` they are discarded, because the sums of another share are on
        another rank.
        """
        landed = set(self.landed)
        order = [self.landed + [number for number in self.arrangement.order if number not in landed]]
        dist.broadcast_object_list(order, group=self._group, group_src=0)
        gradients = [None if self._scatter else parameter.grad for parameter in self.parameters]
        used = self.used
        self._arrange(order[0])
        if self._scatter:
            return
        self.used = used
        for parameter, view, gradient in zip(self.parameters, self._views, gradients, strict=True):
            parameter.grad = None if gradient is None else view.copy_(gradient)

    def relocate(self, copy: Callable[[Tensor], Tensor]) -> None:
        """Replace the buffer by the copy that `copy(buffer)` returns, and discard the gradients."""
        self._fill(copy(self.buffer))

    def begin(self) -> None:
        """Start an exchange: the gradients of the next backward pass are reduced, and added to those of an unfinished one."""
        if self._active:
            self._end_pass()
            shares = [share.clone() for share in self._shares()]
            self._earlier = [a.add_(b) for a, b in zip(shares, self._earlier, strict=True)] if self._earlier else shares
        else:
            self.used = [False] * len(self.parameters)
        self._active, self.landed, self._done = True, [], set[int]()
        self._flags.zero_()
        self._num_pending = [len(bucket.members) for bucket in self.arrangement.buckets]
        self._works: list[Any] = []
        self._num_ended = 0

    def finish(self) -> None:
        """Wait until every gradient is the sum over the ranks; TimeoutError or RuntimeError if a rank is gone or late."""
        self._end_pass()
        self._active = False
        for share, earlier in zip(self._shares(), self._earlier, strict=False):
            share.add_(earlier)
        self._earlier = []
        self.exposure = self.meter.take()

    def _end_pass(self) -> None:
        for number in set(range(len(self.parameters))) - self._done:
            parameter = self.parameters[number]
            if parameter.grad is None:
                self._views[number].zero_()
            self._complete(number, parameter)
        self._wait(most=0)
        self.used = [used or count > 0 for used, count in zip(self.used, self._flags.tolist(), strict=True)]
        for used, parameter, view in zip(self.used, self.parameters, self._views, strict=True):
            parameter.grad = view if used and not self._scatter else None

    def _arrange(self, order: list[int]) -> None:
        sizes = [parameter.numel() for parameter in self.parameters]
        ranks = self.size if self._scatter else 1
        self.arrangement: BucketLayout = arrange(sizes, order, ranks=ranks, bucket_bytes=self._bucket_bytes)
        self._fill(flat_buffer(self.arrangement.length + -(-len(sizes) // ALIGNMENT) * ALIGNMENT))
        self._bucket_of = {number: n for n, bucket in enumerate(self.arrangement.buckets) for number in bucket.members}
        self.used = [False] * len(sizes)
        self._num_pending, self._works, self._num_ended = [], [], 0

    def _fill(self, buffer: Tensor) -> None:
        self.buffer, self._counts = buffer, buffer[self.arrangement.length :]
        self._flags = self._counts[: len(self.parameters)]
        self._views: list[Tensor] = []
        for parameter, start in zip(self.parameters, self.arrangement.starts, strict=True):
            parameter.grad = None
            self._views.append(self.buffer[start : start + parameter.numel()].view(parameter.shape))
            hcops.optimizer.assign_grad_view(parameter, self._views[-1])

    def _on_gradient(self, parameter: Tensor) -> None:
        if self._active:
            number = self._number[id(parameter)]
            if number in self._done:
                raise user_error(
                    f"gradient of a parameter of shape {tuple(parameter.shape)}, which travels already",
                    got="a second one in the same exchange",
                    expected="one backward pass between `begin` and `finish`, in which each gradient is made once",
                    fix="add the losses up and call backward once; checkpoint with use_reentrant=False",
                )
            self._done.add(number)
            self.landed.append(number)
            self._complete(number, self.parameters[number])

    def _complete(self, number: int, parameter: Parameter) -> None:
        view, gradient = self._views[number], parameter.grad
        if gradient is not None:
            self._flags[number] = 1.0
            if gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
        self._num_pending[self._bucket_of[number]] -= 1
        while len(self._works) < len(self._num_pending) and not self._num_pending[len(self._works)]:
            self._launch(len(self._works))
        if len(self._works) == len(self._num_pending):  # every flag is set
            self._works.append(self._sum(self._counts))

    def _launch(self, index: int) -> None:
        bucket = self.arrangement.buckets[index]
        part = self.buffer[bucket.start : bucket.stop]
        if not self._scatter or self._owners is not None:
            self._works.append(self._sum(part))
            return
        self.meter.sent(part.nbytes)
        share = self.buffer[bucket.share(self.rank, self.size)]
        self._works.append(dist.reduce_scatter_single(share, part, group=self._group, async_op=True))
        if self.releases:
            self._wait(most=IN_FLIGHT)

    def _wait(self, *, most: int) -> None:
        """Wait for sums in order until at most this number is under way, and release the memory of ended sums."""
        works, buckets = self._works, self.arrangement.buckets
        while (waiting := works[self._num_ended :]) and (len(waiting) > most or waiting[0].is_completed()):
            self.meter.wait(waiting[0])
            if self.releases and self._num_ended < len(buckets):
                bucket = buckets[self._num_ended]
                share = bucket.share(self.rank, self.size)
                for part in (slice(bucket.start, share.start), slice(share.stop, bucket.stop)):
                    numa.release_pages(self.buffer[part])
            self._num_ended += 1

    def _shares(self) -> list[Tensor]:
        """Return this rank's shares of all buckets, as views of the buffer."""
        return [self.buffer[bucket.share(self.rank, self.size)] for bucket in self.arrangement.buckets]

    def _sum(self, part: Tensor) -> Any:
        self.meter.sent(part.nbytes)
        return dist.all_reduce(part, group=self._group, async_op=True)
