"""The exponential moving average of the weights, with a warm-up that makes it follow from the first step."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.tensors import Piece
from dithc.train.zero import Zero

# Where a tensor that outlives a step is to live: given its name and another (perhaps without memory), an uninitialised one of the
# same shape and type.
Home: TypeAlias = Callable[[str, Tensor], Tensor]


def anywhere(_: str, like: Tensor) -> Tensor:
    """A home in the memory that torch gives."""
    return torch.empty(like.shape, dtype=like.dtype)


def decay_at(step: int, *, decay: float, warmup: bool) -> float:
    """The decay used after optimizer step `step` (1 is the first): min(decay, (1 + step) / (10 + step)) with warm-up."""
    return min(decay, (1 + step) / (10 + step)) if warmup else decay


def initial_share(step: int, *, decay: float, warmup: bool) -> float:
    """The share of the initial weights that is left in the average after `step` steps."""
    share = 1.0
    for number in range(1, step + 1):
        share *= decay_at(number, decay=decay, warmup=warmup)
    return share


class Ema:
    """A second set of weights, fp32, that follows those of a model; the optimizer moves it in its own pass over memory.

    Attributes:
        state: names to tensors, as the model's state dictionary has them; under ZeRO-1 this rank's runs of those that are
            trained, and on the first rank what is not trained.
    """

    def __init__(
        self, model: nn.Module, settings: training.Ema, *, zero: Zero | None = None, home: Home = anywhere
    ) -> None:
        self.settings, self._zero = settings, zero
        self.state: dict[str, Tensor] = {}
        for name, value in model.state_dict().items():
            if zero is None or zero.keeps(name):
                own = value.detach() if zero is None else zero.own(name, value.detach())
                self.state[name] = home(f"ema.{name}", own).copy_(own)

    def decay(self, step: int) -> float:
        """The decay with which `Optimizer.step` moves the average towards the weights after optimizer step `step`."""
        return decay_at(step, decay=self.settings.decay, warmup=self.settings.warmup)

    def pieces(self) -> list[Piece]:
        """What this rank holds of the average."""
        piece = Piece.whole if self._zero is None else self._zero.piece
        return [piece(name, value) for name, value in self.state.items()]

    def move(self, moved: Home) -> None:
        """Has every tensor replaced by the one, of the same content, that `moved` returns for its name and itself."""
        self.state = {name: moved(f"ema.{name}", value) for name, value in self.state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over a saved average, or the weights a fine-tuning starts from: whole tensors by name."""
        for name, value in self.state.items():
            value.copy_(self._cut(name, state[name]))

    def _cut(self, name: str, whole: Tensor) -> Tensor:
        return whole if self._zero is None else self._zero.cut(name, whole)
