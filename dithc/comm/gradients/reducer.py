"""The gradients of all ranks become one sum while the backward pass still runs.

All gradients lie in one buffer, in the order in which the backward pass makes them. It is cut into buckets; a bucket whose
gradients are complete is handed to the communication thread, one bucket after the other in this order on every rank, whatever
the order in which a rank gets ready (else ranks would wait for each other's buckets for ever).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from dithc import hcops
from dithc.comm.exposure import Exposure, Meter
from dithc.comm.gradients.buckets import ALIGNMENT, Arrangement, arrange, flat_buffer
from dithc.log import problem


class Reducer:
    """Sums the gradients of some parameters over the ranks of a group.

    `begin` before the backward pass whose gradients are to be exchanged, `finish` after it: then every `.grad` is the sum over
    the ranks, or None where no rank has one. Without `begin` gradients accumulate on this rank alone.

    With `scatter` a rank gets the sums of its share of each bucket only, in `buffer`, and every `.grad` is None: what is
    outside of the share is this rank's own gradient still.

        reducer = Reducer(model.parameters())  # after `comm.connect` or `comm.ranks`, of several ranks
        reducer.begin()
        loss.backward()
        reducer.finish()                       # every .grad is the sum over the ranks
        reducer.record()                       # once: from now on buckets travel in the order in which gradients are made

    Attributes:
        parameters: that take part; their place in this list is their number.
        arrangement: where they lie in the buffer.
        buffer: all gradients, fp32, and behind them one number a parameter: how many ranks used it.
        used: whether any rank had a gradient in the last exchange, by number.
        landed: whose gradients this rank had in the last exchange, by number, in the order in which they were made.
        meter: counts what the exchange costs.
        exposure: what the last exchange cost.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        *,
        group: Any = None,
        bucket_bytes: int | None = None,
        scatter: bool = False,
    ) -> None:
        """Prepares the buffer, in reverse order of the parameters until a backward pass was recorded.

        Args:
            parameters: that are trained; the same on every rank, fp32.
            group: of torch.distributed; None for all ranks.
            bucket_bytes: None for the rule of `buckets.py`.
            scatter: leaves each rank its share of the sums.
        """
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._number = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self._group, self._bucket_bytes, self._scatter = group, bucket_bytes, scatter
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._active = False
        self.landed: list[int] = []
        self._done: set[int] = set()
        self.used: list[bool] = []
        self.meter, self.exposure = Meter(), Exposure()
        self._arrange(list(reversed(range(len(self.parameters)))))
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._landed)  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        sizes = sorted(bucket.megabytes for bucket in self.arrangement.buckets)
        return f"{len(sizes)} buckets of {sizes[0]:.1f} to {sizes[-1]:.1f} MB"

    def record(self) -> None:
        """Arranges the buffer in the order of the last exchanged backward pass, that of rank 0 on all ranks.

        Gradients stay, and who has them finds them in the new buffer. With `scatter` they are forgotten: the sums of another
        share are on another rank.
        """
        landed = set(self.landed)
        box = [self.landed + [number for number in self.arrangement.order if number not in landed]]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        held = [None if self._scatter else parameter.grad for parameter in self.parameters]
        used = self.used
        self._arrange(box[0])
        if self._scatter:
            return
        self.used = used
        for parameter, view, gradient in zip(self.parameters, self._views, held, strict=True):
            parameter.grad = None if gradient is None else view.copy_(gradient)

    def move(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Has the buffer replaced by the one, of the same content, that `moved` returns for it. Forgets the gradients."""
        self._fill(moved(self.buffer))

    def begin(self) -> None:
        """The gradients of the next backward pass are exchanged."""
        self._active, self.landed, self._done = True, [], set[int]()
        self._flags.zero_()
        self._waiting = [len(bucket.members) for bucket in self.arrangement.buckets]
        self._works: list[Any] = []

    def finish(self) -> None:
        """Waits until every gradient is the sum over the ranks.

        Raises:
            TimeoutError, RuntimeError: another rank is gone or late.
        """
        for number in set(range(len(self.parameters))) - self._done:
            parameter = self.parameters[number]
            if parameter.grad is None:
                self._views[number].zero_()
            self._complete(number, parameter)
        self._active = False
        for work in self._works:
            self.meter.wait(work)
        self.exposure = self.meter.take()
        self.used = [count > 0 for count in self._flags.tolist()]
        for used, parameter, view in zip(self.used, self.parameters, self._views, strict=True):
            parameter.grad = view if used and not self._scatter else None

    def _arrange(self, order: list[int]) -> None:
        sizes = [parameter.numel() for parameter in self.parameters]
        ranks = self.size if self._scatter else 1
        self.arrangement: Arrangement = arrange(sizes, order, ranks=ranks, bucket_bytes=self._bucket_bytes)
        self._fill(flat_buffer(self.arrangement.length + -(-len(sizes) // ALIGNMENT) * ALIGNMENT))
        self._bucket_of = {number: n for n, bucket in enumerate(self.arrangement.buckets) for number in bucket.members}
        self.used = [False] * len(sizes)
        self._waiting, self._works = [], []

    def _fill(self, buffer: Tensor) -> None:
        """Gives every gradient its place in this buffer."""
        self.buffer, self._counts = buffer, buffer[self.arrangement.length :]
        self._flags = self._counts[: len(self.parameters)]
        self._views: list[Tensor] = []
        for parameter, start in zip(self.parameters, self.arrangement.starts, strict=True):
            parameter.grad = None
            self._views.append(self.buffer[start : start + parameter.numel()].view(parameter.shape))
            hcops.optimizer.give_place(parameter, self._views[-1])

    def _landed(self, parameter: Tensor) -> None:
        """A gradient is complete on this rank."""
        if self._active:
            number = self._number[id(parameter)]
            if number in self._done:
                raise problem(
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
        self._waiting[self._bucket_of[number]] -= 1
        while len(self._works) < len(self._waiting) and not self._waiting[len(self._works)]:
            self._launch(len(self._works))
        if len(self._works) == len(self._waiting):  # every flag is set
            self._works.append(self._sum(self._counts))

    def _launch(self, index: int) -> None:
        bucket = self.arrangement.buckets[index]
        part = self.buffer[bucket.start : bucket.stop]
        if not self._scatter:
            self._works.append(self._sum(part))
            return
        self.meter.sent(part.nbytes)
        own = self.buffer[bucket.share(self.rank, self.size)]
        self._works.append(dist.reduce_scatter_single(own, part, group=self._group, async_op=True))

    def _sum(self, part: Tensor) -> Any:
        self.meter.sent(part.nbytes)
        return dist.all_reduce(part, group=self._group, async_op=True)
