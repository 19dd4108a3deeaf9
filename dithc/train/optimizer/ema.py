"""Exponential average of the weights, with a warm-up of its decay; the optimizer updates it in its own pass."""

from collections.abc import Mapping

from torch import Tensor, nn

from dithc.config import training
from dithc.core.tensor_files import TensorPiece
from dithc.train.state_placement import Allocator, new_empty
from dithc.train.strategies import ShardedState


def decay_at(step: int, *, decay: float, warmup: bool) -> float:
    """Return the decay after optimizer step `step`; with warm-up min(decay, (1 + step) / (10 + step))."""
    return min(decay, (1 + step) / (10 + step)) if warmup else decay


def initial_weight_fraction(step: int, *, decay: float, warmup: bool) -> float:
    """Return the share of the initial weights in the average after `step` steps."""
    share = 1.0
    for number in range(1, step + 1):
        share *= decay_at(number, decay=decay, warmup=warmup)
    return share


class Ema:
    """The exponential average of a model's weights, updated by the optimizer.

    `state` has the names of the state dictionary, in fp32. Under ZeRO-1 it holds this rank's runs; the first rank adds untrained
    tensors.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: training.EmaConfig,
        *,
        sharded: ShardedState | None = None,
        allocate: Allocator = new_empty,
    ) -> None:
        """Start from the model's weights, in memory from `allocate` (`ema.<name>`)."""
        self.settings, self._sharded = settings, sharded
        self.state: dict[str, Tensor] = {}
        weights = {} if sharded is None else sharded.weights()
        for name, value in model.state_dict().items():
            if sharded is None or sharded.keeps(name):
                local = weights.get(name, value.detach())
                self.state[name] = allocate(f"ema.{name}", local).copy_(local)

    def decay(self, step: int) -> float:
        """Return the decay of the average after optimizer step `step`, for `Optimizer.step`."""
        return decay_at(step, decay=self.settings.decay, warmup=self.settings.warmup)

    def pieces(self) -> list[TensorPiece]:
        piece = TensorPiece.whole if self._sharded is None else self._sharded.piece
        return [piece(name, value) for name, value in self.state.items()]

    def relocate(self, place: Allocator) -> None:
        """Replace every tensor by the copy that `place` returns for its name and value."""
        self.state = {name: place(f"ema.{name}", value) for name, value in self.state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved average, or start weights, from complete tensors by name."""
        for name, value in self.state.items():
            value.copy_(state[name] if self._sharded is None else self._sharded.cut(name, state[name]))
