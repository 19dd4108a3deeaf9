"""Averages of the weights: exponential with warm-up, and of fixed relative lengths (Karras et al. 2024, section 3).

The optimizer updates the exponential average in its own pass. Each length costs one further pass, for post-hoc averages.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from dithc.config import training
from dithc.core.posthoc_ema import decay_at_step as decay_of_length
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


class Average:
    """A second set of fp32 weights that follows a model's weights.

    `state` has the names of the state dictionary. Under ZeRO-1 it holds this rank's runs; the first rank adds untrained tensors.
    """

    def __init__(
        self, model: nn.Module, *, label: str, sharded: ShardedState | None = None, allocate: Allocator = new_empty
    ) -> None:
        """Start from the model's weights; `label` identifies the average to `allocate`."""
        self.label, self._sharded = label, sharded
        self.state: dict[str, Tensor] = {}
        weights = {} if sharded is None else sharded.weights()
        for name, value in model.state_dict().items():
            if sharded is None or sharded.keeps(name):
                local = weights.get(name, value.detach())
                self.state[name] = allocate(f"{label}.{name}", local).copy_(local)

    def pieces(self) -> list[TensorPiece]:
        piece = TensorPiece.whole if self._sharded is None else self._sharded.piece
        return [piece(name, value) for name, value in self.state.items()]

    def relocate(self, place: Allocator) -> None:
        """Replace every tensor by the copy that `place` returns for its name and value."""
        self.state = {name: place(f"{self.label}.{name}", value) for name, value in self.state.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a saved average, or start weights, from complete tensors by name."""
        for name, value in self.state.items():
            value.copy_(state[name] if self._sharded is None else self._sharded.cut(name, state[name]))


class LengthAverage(Average):
    """Average of a length: the relative standard deviation of its power-function profile."""

    def __init__(
        self, model: nn.Module, length: float, *, sharded: ShardedState | None = None, allocate: Allocator = new_empty
    ) -> None:
        super().__init__(model, label=f"ema-{length}", sharded=sharded, allocate=allocate)
        self.length = length

    def follow(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Move towards the weights after optimizer step `step`."""
        share = 1.0 - decay_of_length(step, length=self.length)
        for name, value in weights.items():
            self.state[name].lerp_(value, share)


class Ema(Average):
    """The exponential average, updated by the optimizer; `length_averages` holds the averages of `settings.stds`."""

    def __init__(
        self,
        model: nn.Module,
        settings: training.EmaConfig,
        *,
        sharded: ShardedState | None = None,
        allocate: Allocator = new_empty,
    ) -> None:
        super().__init__(model, label="ema", sharded=sharded, allocate=allocate)
        self.settings, lengths = settings, settings.stds or ()
        self.length_averages = [LengthAverage(model, std, sharded=sharded, allocate=allocate) for std in lengths]

    def decay(self, step: int) -> float:
        """Return the decay of the average after optimizer step `step`, for `Optimizer.step`."""
        return decay_at(step, decay=self.settings.decay, warmup=self.settings.warmup)

    def tensors(self) -> Iterator[Tensor]:
        for average in (self, *self.length_averages):
            yield from average.state.values()

    def relocate(self, place: Allocator) -> None:
        super().relocate(place)
        for average in self.length_averages:
            average.relocate(place)
