"""Pipeline parallelism of a DiT: each stage holds consecutive blocks (Huang et al. 2019, GPipe).

The first stage also holds the embeddings, the last stage the final layer, so that each trained weight is on one stage. A
stage sends the tokens and conditions of a micro-batch to the next stage, which returns their gradients. Order of passes:
one forward, one backward (Narayanan et al. 2021, section 2.2), with one further micro-batch in flight per later stage, so
that messages travel during computation.
N images of a micro-batch, T tokens, D width.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, autograd, nn
from torch.distributed import ProcessGroup

from dithc.core.logging import user_error
from dithc.engine.cftp import partition
from dithc.engine.comm import traffic
from dithc.model import DiT

POSTED = 2  # micro-batches whose inputs are received in advance
TAGS = 1 << 12  # more than the messages in flight between two stages


class PipelineStage:
    """Part of a DiT on this rank, and its messages to the neighboring stages.

    Attributes:
        absent: names of the model's tensors that other stages hold.
    """

    def __init__(self, model: nn.Module, group: ProcessGroup) -> None:
        """Keep this rank's blocks of a DiT that is equal on all ranks of `group`, the stages in order; UserError if too few."""
        assert isinstance(model, DiT), "the stages below consist of blocks of a DiT"
        self._group, self.index, self.count = group, dist.get_rank(group), dist.get_world_size(group)
        depth = len(model.blocks)
        if depth < self.count:
            raise user_error(
                "machine.pipeline_stages",
                got=f"{self.count} stages for {depth} blocks",
                expected=f"at most {depth}",
                fix="set fewer stages, or train a deeper model",
            )
        names = set(model.state_dict())
        self._parts = partition(depth, self.count)
        self.blocks = self._parts[self.index]
        for number in (*range(self.blocks.start), *range(self.blocks.stop, depth)):
            model.blocks[number] = nn.Identity()
        if not self.is_first:
            model.x_embedder = model.t_embedder = model.y_embedder = None  # type: ignore[assignment]
        if not self.is_last:
            model.final_layer = None  # type: ignore[assignment]
        self.absent = frozenset(names - set(model.state_dict()))
        self.meter = traffic.CommMeter()
        self._width, self._tokens = model.config.hidden_size, model.config.num_tokens
        self._numbers: dict[tuple[str, int], int] = {}  # of messages, by direction and neighbor
        self._sent: deque[tuple[Any, Tensor]] = deque()
        self._expected: deque[int] = deque()
        self._posted: deque[_Message] = deque()
        model.forward = partial(_forward, model, self)  # type: ignore[method-assign]

    def __str__(self) -> str:
        sizes = ", ".join(str(part.stop - part.start) for part in self._parts)
        return f"{self.count} stages of {sizes} blocks; AutoMem is off"

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    def expect(self, images: Iterable[int]) -> None:
        """Announce the forward passes of a step by their numbers of images, so that inputs travel during computation."""
        self.meter.take()
        if not self.is_first:
            self._expected.extend(images)
            self._post()

    def input(self, images: int) -> tuple[Tensor, Tensor]:
        """Return tokens (N, T, D) and conditions (N, D) of the next micro-batch of the previous stage, fp32."""
        message = self._posted.popleft() if self._posted else self.post(images, source=self.index - 1)
        self._post()
        return message.values()

    def post(self, images: int, *, source: int) -> "_Message":
        """Start to receive tokens and conditions, or their gradients, from a neighboring stage."""
        shapes = (images, self._tokens, self._width), (images, self._width)
        tensors = [torch.empty(shape) for shape in shapes]
        receive = partial(dist.irecv, group=self._group, group_src=source)
        works = [receive(tensor, tag=self._tag("from", source)) for tensor in tensors]
        return _Message(works, tensors, self.meter)

    def send(self, tensors: Iterable[Tensor], *, target: int) -> None:
        """Start to send tokens and conditions, or their gradients, to a neighboring stage."""
        while len(self._sent) > 4 * self.count or (self._sent and self._sent[0][0].is_completed()):
            self.meter.wait(self._sent.popleft()[0])
        for tensor in tensors:
            message = tensor.detach().contiguous()
            work = dist.isend(message, group=self._group, group_dst=target, tag=self._tag("to", target))
            self._sent.append((work, message))

    def take_costs(self) -> dict[str, float]:
        """Return the seconds for which this rank waited for other stages since the last call."""
        return {"stage_seconds": self.meter.take().exposed_seconds}

    def norm(self, local: float) -> float:
        """Return the norm over all stages from this stage's; squares are summed in the order of the stages."""
        norms = torch.empty(self.count, dtype=torch.float64)
        dist.all_gather_single(norms, torch.tensor([local], dtype=torch.float64), group=self._group)
        return math.sqrt(sum(norm**2 for norm in norms.tolist()))

    def select(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors of this stage from complete ones: weights, averages, or optimizer state by weight."""
        return _StageView(tensors, self.absent)

    def _post(self) -> None:
        while self._expected and len(self._posted) < POSTED:
            self._posted.append(self.post(self._expected.popleft(), source=self.index - 1))

    def _tag(self, direction: str, neighbor: int) -> int:
        """Return the tag of the next message: large messages travel in pieces, which must not mix."""
        number = self._numbers.get((direction, neighbor), 0)
        self._numbers[direction, neighbor] = number + 1
        return number % TAGS


class _Message:
    def __init__(self, works: list[Any], tensors: list[Tensor], meter: traffic.CommMeter) -> None:
        self._works, self._tensors, self._meter = works, tensors, meter

    def values(self) -> tuple[Tensor, Tensor]:
        for work in self._works:
            self._meter.wait(work)
        tokens, conditions = self._tensors
        return tokens, conditions


class _StageView(Mapping[str, Tensor]):
    def __init__(self, whole: Mapping[str, Tensor], absent: frozenset[str]) -> None:
        self._whole = whole
        self._names = [name for name in whole if not {name, name.partition(".")[2]} & absent]

    def __getitem__(self, name: str) -> Tensor:
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _forward(model: DiT, stage: PipelineStage, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """Run this stage's part of `DiT.forward`. Stages before the last return zeros, and ignore the gradient of them."""
    if stage.is_first:
        tokens, c = model.embed(x, t, y)  # (N, T, D), (N, D)
    else:
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled())  # without it, autograd would skip `_Input`
        tokens, c = _Input.apply(anchor, stage, len(x))  # type: ignore[no-untyped-call]
    for block in model.blocks[stage.blocks.start : stage.blocks.stop]:
        tokens = block(tokens, c)  # (N, T, D)
    if stage.is_last:
        return model.image(model.final_layer(tokens, c), x, t, y)
    shape = len(x), model.config.out_channels, *model.config.size
    output: Tensor = _Output.apply(tokens, c, stage, shape)  # type: ignore[no-untyped-call]
    return output


class _Input(autograd.Function):
    """Tokens and conditions of the previous stage; their gradients are sent to it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, stage: PipelineStage, images: int) -> tuple[Tensor, Tensor]:
        ctx.stage = stage
        return stage.input(images)

    @staticmethod
    def backward(ctx: Any, tokens: Tensor, conditions: Tensor) -> tuple[None, None, None]:
        ctx.stage.send((tokens, conditions), target=ctx.stage.index - 1)
        return None, None, None


class _Output(autograd.Function):
    """Zeros of a shape; tokens and conditions are sent to the next stage, which returns their gradients."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, conditions: Tensor, stage: PipelineStage, shape: tuple[int, ...]) -> Tensor:
        stage.send((tokens, conditions), target=stage.index + 1)
        if any(ctx.needs_input_grad):
            ctx.gradients = stage.post(len(tokens), source=stage.index + 1)
        return tokens.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *ctx.gradients.values(), None, None
