"""The gradients of all ranks become one sum while the backward pass still runs.

All gradients lie in one buffer, in the order in which the backward pass makes them. It is cut into buckets; a bucket whose
gradients are complete is handed to the communication thread, one bucket after the other in this order on every rank, whatever
the order in which a rank gets ready (else ranks would wait for each other's buckets for ever).
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from dithc import hcops

# A bucket is a 32nd of all gradients, within these bounds: small enough that the last one, which nothing hides, is little of the
# whole; large enough that the latency of a collective, some tens of microseconds, does not show.
BUCKETS = 32
LEAST_BUCKET_BYTES, MOST_BUCKET_BYTES = 1 << 20, 16 << 20


@dataclass
class Bucket:
    """Elements start..stop of the buffer, complete when no gradient of `waiting` is missing."""

    start: int
    stop: int
    parameters: list[int]
    waiting: int = 0
    work: Any = None

    @property
    def megabytes(self) -> float:
        """Size of its numbers, fp32."""
        return (self.stop - self.start) * torch.float32.itemsize / 1e6


@dataclass
class Exposure:
    """What the exchange of one step cost.

    Attributes:
        exposed_seconds: time the step waited for it, after the backward pass.
        bytes_moved: of gradients, handed over by this rank.
    """

    exposed_seconds: float = 0.0
    bytes_moved: int = 0


@dataclass
class _Layout:
    """Where each gradient lies: parameter numbers in the order of the buffer, and the buckets."""

    order: list[int]
    buckets: list[Bucket] = field(default_factory=list)
    bucket_of: dict[int, Bucket] = field(default_factory=dict)


class Reducer:
    """Sums the gradients of some parameters over the ranks of a group.

    `begin` before the backward pass whose gradients are to be exchanged, `finish` after it: then every `.grad` is the sum over
    the ranks, or None where no rank has one. Without `begin` gradients accumulate on this rank alone.

    Attributes:
        buffer: all gradients, fp32, and behind them one number a parameter: how many ranks used it.
        exposure: what the last exchange cost.
    """

    def __init__(self, parameters: Iterable[Parameter], *, group: Any = None, bucket_bytes: int | None = None) -> None:
        """Prepares the buffer, in reverse order of the parameters until a backward pass was recorded.

        Args:
            parameters: that are trained; the same on every rank, fp32.
            group: of torch.distributed; None for all ranks.
            bucket_bytes: None for the rule above.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._number = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._group, self._bucket_bytes = group, bucket_bytes
        self._active = False
        self._seen: list[int] = []
        self._next = 0
        self.exposure = Exposure()
        self._arrange(list(reversed(range(len(self._parameters)))))
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._landed)  # type: ignore[no-untyped-call]

    def __str__(self) -> str:
        sizes = sorted(bucket.megabytes for bucket in self._layout.buckets)
        return f"{len(sizes)} buckets of {sizes[0]:.1f} to {sizes[-1]:.1f} MB"

    def record(self) -> None:
        """Arranges the buffer in the order of the last exchanged backward pass, that of rank 0 on all ranks."""
        order = self._seen + [number for number in self._layout.order if number not in set(self._seen)]
        box = [order]
        dist.broadcast_object_list(box, group=self._group, group_src=0)
        self._arrange(box[0])

    def begin(self) -> None:
        """The gradients of the next backward pass are exchanged."""
        self._active, self._seen, self._next = True, [], 0
        self.exposure = Exposure()
        self._used.zero_()
        for bucket in self._layout.buckets:
            bucket.waiting, bucket.work = len(bucket.parameters), None

    def finish(self) -> None:
        """Waits until every gradient is the sum over the ranks.

        Raises:
            TimeoutError, RuntimeError: another rank is gone or late.
        """
        for number in set(range(len(self._parameters))) - set(self._seen):
            parameter = self._parameters[number]
            if parameter.grad is None:
                self._view(parameter).zero_()
            self._complete(number, parameter)
        self._active = False
        begun = time.perf_counter()
        for bucket in self._layout.buckets:
            bucket.work.wait()
        self.exposure.exposed_seconds = time.perf_counter() - begun
        for used, parameter in zip(self._used.tolist(), self._parameters, strict=True):
            parameter.grad = self._view(parameter) if used else None

    def _arrange(self, order: list[int]) -> None:
        arranged = [self._parameters[number] for number in order]
        for parameter in arranged:
            parameter.grad = None
        used = Parameter(torch.empty(len(self._parameters)))
        self.buffer = hcops.optimizer.flat_gradients([*arranged, used])
        self._used = self._view(used)
        self._layout = _Layout(order)
        limit = self._bucket_bytes or min(max(self.buffer.nbytes // BUCKETS, LEAST_BUCKET_BYTES), MOST_BUCKET_BYTES)
        starts = [self._start(parameter) for parameter in arranged] + [self._start(used)]
        bucket: Bucket | None = None
        for place, number in enumerate(order):
            stop = starts[place + 1]
            if bucket is None or (stop - bucket.start) * self.buffer.itemsize > limit:
                bucket = Bucket(starts[place], stop, [])
                self._layout.buckets.append(bucket)
            bucket.stop = stop
            bucket.parameters.append(number)
            self._layout.bucket_of[number] = bucket
        if bucket is not None:
            bucket.stop = self.buffer.numel()

    def _view(self, parameter: Parameter) -> Tensor:
        view: Tensor = parameter.flat_grad  # type: ignore[attr-defined]
        return view

    def _start(self, parameter: Parameter) -> int:
        return (self._view(parameter).data_ptr() - self.buffer.data_ptr()) // self.buffer.itemsize

    def _landed(self, parameter: Tensor) -> None:
        """A gradient is complete on this rank."""
        if self._active:
            number = self._number[id(parameter)]
            self._seen.append(number)
            self._complete(number, self._parameters[number])

    def _complete(self, number: int, parameter: Parameter) -> None:
        view, gradient = self._view(parameter), parameter.grad
        if gradient is not None:
            self._used[number] = 1.0
            if gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
        self._layout.bucket_of[number].waiting -= 1
        buckets = self._layout.buckets
        while self._next < len(buckets) and buckets[self._next].waiting == 0:
            bucket = buckets[self._next]
            part = self.buffer[bucket.start : bucket.stop]
            self.exposure.bytes_moved += part.nbytes
            bucket.work = dist.all_reduce(part, group=self._group, async_op=True)
            self._next += 1
