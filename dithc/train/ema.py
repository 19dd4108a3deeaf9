"""The exponential moving average of the weights, with a warm-up that makes it follow from the first step."""

from collections.abc import Mapping

from torch import Tensor, nn

from dithc.config import training


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
        state: names to tensors, as the model's state dictionary has them.
    """

    def __init__(self, model: nn.Module, settings: training.Ema) -> None:
        self.settings = settings
        self.state: dict[str, Tensor] = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def decay(self, step: int) -> float:
        """The decay with which `Optimizer.step` moves the average towards the weights after optimizer step `step`."""
        return decay_at(step, decay=self.settings.decay, warmup=self.settings.warmup)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over a saved average, or the weights a fine-tuning starts from."""
        for name, value in self.state.items():
            value.copy_(state[name])
