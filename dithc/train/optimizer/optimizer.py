"""AdamW, or Muon beside it, over the trainable parameters: learning rate, clipping, the average, the state as named tensors."""

import math
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from dithc import hcops
from dithc.config import training
from dithc.log import logger, problem
from dithc.tensors import Piece
from dithc.train.matrices import Holding
from dithc.train.optimizer.ema import Ema, Home, anywhere
from dithc.train.optimizer.muon import MOMENTUM, Muon
from dithc.train.optimizer.zero import Zero

MOMENTS = ("exp_avg", "exp_avg_sq")
EPSILON = 1e-8  # torch's default, and that of DiT's training
# Beyond it a gradient's square may not be a number of fp32, and its second moment would be infinite for good.
LARGEST_GRADIENT = math.sqrt(torch.finfo(torch.float32).max)
NORM_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it to the norm
log = logger(__name__)


def learning_rate_at(step: int, settings: training.Run) -> float:
    """The learning rate of optimizer step `step` (1 is the first): linear from 0 over the warm-up, then by the schedule.

    cosine is that of Loshchilov & Hutter 2017 (equation 5), without restarts.
    """
    warmup, last = settings.warmup_steps, settings.steps
    rate = settings.lr * min(1.0, step / warmup) if warmup else settings.lr
    if settings.lr_schedule == "cosine":
        return rate * 0.5 * (1.0 + math.cos(math.pi * max(0, step - warmup) / (last - warmup)))
    if settings.lr_schedule == "trapezoid":
        return rate * min(1.0, (last - step) / (settings.decay_share * last))
    return rate


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) with the operators of `hcops`: one pass for the norm, one for everything else.

    Both passes are elementwise or in a fixed order, so the result does not depend on threads or on earlier runs. With
    `optimizer.kind` muon, weights that consist of matrices have no moments here: `Muon` makes their updates.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: training.Run,
        *,
        flat: bool = True,
        norm: Callable[[Mapping[str, Tensor]], float] | None = None,
        zero: Zero | None = None,
        holding: Holding | None = None,
        home: Home = anywhere,
    ) -> None:
        """Prepares moments of zeros.

        Args:
            model: whose parameters are trained.
            settings: learning rate and its schedule, betas, weight decay, clipping.
            flat: lets linear layers write their gradients into one buffer that stays, where micro-batches add up. Without
                micro-batches it is memory beside the activations for nothing: gradients of their own grow as those are freed.
                Of no use either where another owner (DistributedDataParallel) copies them into buffers of its own.
            norm: of the gradients by name, where other ranks hold a part of them; None for the plain norm.
            zero: which runs of elements this rank updates; None for all weights.
            holding: which rank has what of the matrices of Muon; None where there is one rank.
            home: where moments (`exp_avg.<name>`, `exp_avg_sq.<name>`, `momentum.<matrix>`) and the one buffer (`gradients`)
                are to live.
        """
        self._norm = norm or (_norm if zero is None else zero.norm)
        self._settings, self._zero = settings, zero
        self._named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._muon: Muon | None = None
        if settings.optimizer.kind == "muon":
            self._muon = Muon(self._named, settings, holding=holding or Holding(), home=home)
            log.info(str(self._muon))
        self._moments = {
            moment: {
                name: home(f"{moment}.{name}", value).zero_()
                for name, value in self._weights().items()
                if name not in self._matrices
            }
            for moment in MOMENTS
        }
        self._updates = 0
        self._gradient_scale = 1.0
        weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)] if flat else []
        self._flat = [weight for weight in weights if isinstance(weight, nn.Parameter)]
        self._give_places(home)

    def zero(self) -> None:
        """Forgets the gradients."""
        hcops.optimizer.forget_gradients(self._named.values())
        self._gradient_scale = 1.0

    def move(self, moved: Home) -> None:
        """Has every moment replaced by the one, of the same content, that `moved` returns for its name and itself.

        The buffer of gradients is made anew, so call it where no gradient is held.
        """
        for moment, values in self._moments.items():
            self._moments[moment] = {name: moved(f"{moment}.{name}", value) for name, value in values.items()}
        if self._muon is not None:
            self._muon.move(moved)
        self._give_places(moved)

    def _give_places(self, home: Home) -> None:
        """Lets the weights of linear layers have their gradients written into one buffer."""
        if self._flat:
            hcops.optimizer.flat_gradients(
                self._flat, zeros=lambda size: home("gradients", torch.empty(size, device="meta")).zero_()
            )

    def clip(self) -> float:
        """Has the next step scale the gradients to the largest allowed norm; returns their norm, over all parameters."""
        norm = self._norm(self._gradients())
        if self._settings.clip is not None:
            self._gradient_scale = min(1.0, self._settings.clip / (norm + NORM_EPSILON))
        return norm

    def takes(self, norm: float) -> bool:
        """Whether an update can be made of gradients of this norm, which `clip` returned: they and their squares are finite."""
        return math.isfinite(norm) and norm * self._gradient_scale <= LARGEST_GRADIENT

    def step(self, number: int, *, ema: Ema | None = None) -> float:
        """Updates the parameters, and the averages after them, for optimizer step `number`; returns the learning rate used."""
        rate = learning_rate_at(number, self._settings)
        weights, gradients = self._weights(), self._gradients()
        self._updates += 1
        if self._muon is not None:
            used = gradients.keys() if self._zero is None else self._zero.used
            self._muon.replace(gradients, used=used, scale=self._gradient_scale)
        if self._zero is None:
            self._update(weights, gradients, rate=rate, number=number, ema=ema)
        else:
            self._zero.ready()  # also those of layers that the forward pass left out: nothing changes while it travels
            for place, names in enumerate(self._zero.names):
                own = {name: weights[name] for name in names}
                self._update(own, gradients, rate=rate, number=number, ema=ema)
                self._zero.send(place)  # on their way while the next bucket is updated
        for average in () if ema is None else ema.beside:
            average.follow(weights, number)
        return rate

    def _update(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        *,
        rate: float,
        number: int,
        ema: Ema | None,
    ) -> None:
        """One pass over these weights: scaled gradients, decay, moments, weights, average; gradients of matrices are updates."""
        decay = 0.0 if ema is None else ema.decay(number)
        names = [name for name in weights if name in gradients and name not in self._matrices]
        hcops.optimizer.adamw(
            [weights[name] for name in names],
            [gradients[name] for name in names],
            *([self._moments[moment][name] for name in names] for moment in MOMENTS),
            averages=None if ema is None else [ema.state[name] for name in names],
            lr=rate,
            betas=self._settings.betas,
            eps=EPSILON,
            weight_decay=self._settings.weight_decay,
            step=self._updates,
            gradient_scale=self._gradient_scale,
            ema_decay=decay,
        )
        for name in (weights.keys() & gradients.keys()) - set(names):
            weights[name].mul_(1.0 - rate * self._settings.weight_decay).sub_(gradients[name], alpha=rate)
        if ema is not None:  # weights without a gradient stay as they are; their average still moves towards them
            for name in weights.keys() - set(names):
                ema.state[name].lerp_(weights[name], 1.0 - decay)

    @property
    def _matrices(self) -> Collection[str]:
        """Names of the weights that are not AdamW's."""
        return () if self._muon is None else self._muon.names

    def _weights(self) -> dict[str, Tensor]:
        """What this rank updates, by name."""
        if self._zero is not None:
            return self._zero.weights()
        return {name: parameter.detach() for name, parameter in self._named.items()}

    def _gradients(self) -> dict[str, Tensor]:
        """Gradients of what this rank updates, by name; without parameters that have none."""
        if self._zero is not None:
            return self._zero.gradients()
        return {name: parameter.grad for name, parameter in self._named.items() if parameter.grad is not None}

    def state(self) -> dict[str, Tensor]:
        """Moments of what this rank updates as `exp_avg.<name>` and `exp_avg_sq.<name>`, and the number of updates as `step`.

        With Muon also `momentum.<matrix>` of the matrices that this rank owns.
        """
        moments = {f"{moment}.{name}": value for moment in MOMENTS for name, value in self._moments[moment].items()}
        momenta = {} if self._muon is None else self._muon.state()
        return {"step": torch.tensor(float(self._updates)), **moments, **momenta}

    def pieces(self) -> list[Piece]:
        """What this rank holds of the whole state, with the names of `state`; under ZeRO-1 the first rank tells `step`."""
        zero = self._zero
        step = [Piece.whole("step", torch.tensor(float(self._updates)))] if zero is None or zero.is_first else []
        moments = [(f"{moment}.", *item) for moment in MOMENTS for item in self._moments[moment].items()]
        return [
            *step,
            *(
                Piece.whole(moment + name, value) if zero is None else zero.piece(name, value, prefix=moment)
                for moment, name, value in moments
            ),
            *([] if self._muon is None else self._muon.pieces()),
        ]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over a saved state: whole tensors by name.

        Raises:
            UserError: it is the state of other parameters.
        """
        others = self._named.keys() - self._matrices
        wanted = {"step", *(f"{MOMENTUM}.{name}" for name in self._matrices)}
        wanted |= {f"{moment}.{name}" for moment in MOMENTS for name in others}
        if wanted != set(tensors):
            raise problem(
                "optimizer state of the checkpoint",
                got=f"{len(set(tensors) - wanted)} unknown and {len(wanted - set(tensors))} missing tensors",
                expected=f"the moments of this model's parameters, of optimizer {self._settings.optimizer.kind}",
                remedy="start from a checkpoint of this run that this version wrote, or in an empty store",
            )
        self._updates = round(float(tensors["step"]))
        for moment in MOMENTS:
            for name, value in self._moments[moment].items():
                whole = tensors[f"{moment}.{name}"]
                value.copy_(whole if self._zero is None else self._zero.cut(name, whole))
        if self._muon is not None:
            self._muon.load(tensors)


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return math.sqrt(hcops.optimizer.sum_of_squares(list(gradients.values())))
