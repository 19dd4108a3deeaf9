"""AdamW, optionally with Muon, over trainable parameters: learning rate, clipping, average, named state."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.core.logging import get_logger, user_error
from dithc.core.tensor_files import TensorPiece
from dithc.engine import automem, hcops
from dithc.train.optimizer.ema import Ema
from dithc.train.optimizer.muon import MOMENTUM, Muon, MuonConfig
from dithc.train.state_placement import MOMENTS, Allocator, new_empty
from dithc.train.strategies import Strategy

EPSILON = 1e-8  # default of torch and of DiT's training
# The square of a larger gradient may overflow fp32, and its second moment would stay infinite.
LARGEST_GRADIENT = math.sqrt(torch.finfo(torch.float32).max)
NORM_EPSILON = 1e-6  # added to the norm, as in torch.nn.utils.clip_grad_norm_
log = get_logger(__name__)


def learning_rate_at(step: int, settings: training.RunConfig) -> float:
    """Return the learning rate of step `step` (from 1): a linear warm-up, then the schedule."""
    warmup, last = settings.warmup_steps, settings.steps
    rate = settings.peak_lr * (min(1.0, step / warmup) if warmup else 1.0)
    if settings.lr_schedule == "trapezoid":
        return rate * min(1.0, (last - step) / (settings.decay_fraction * last))
    return rate


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) by `hcops`: one pass for the norm, one for the update.

    The result does not depend on threads. Weights that consist of matrices have no moments here if `Muon` updates them.

        optimizer = Optimizer(strategy, lr=lambda step: 1e-3 * min(1.0, step / 100), weight_decay=0.1, clip=1.0)
        strategy.backward(loss)
        values = optimizer.step()  # {"grad_norm": ..., "lr": ...}; clears the gradients
    """

    def __init__(
        self,
        weights: Strategy | nn.Module,
        *,
        lr: float | Callable[[int], float] = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        clip: float | None = None,
        muon: MuonConfig | None = None,
        flat: bool = False,
        allocate: Allocator | None = None,
    ) -> None:
        """Prepare zero moments.

        Args:
            weights: prepared strategy, or model that this process trains alone.
            lr: learning rate, or a function of the step (from 1).
            weight_decay: decoupled weight decay.
            clip: maximum norm of all gradients together; None for no clipping.
            muon: settings of Muon for the matrices of a DiT; None for AdamW alone.
            flat: whether gradients of linear layers accumulate in one persistent buffer, for micro-batches. It wastes
                memory without micro-batches. No effect if the strategy has its own gradient buffers.
            allocate: allocator of moments (`exp_avg.<name>`, `exp_avg_sq.<name>`, `momentum.<matrix>`) and `gradients`;
                None for AutoMem's.

        Raises:
            UserError: a number is out of range, or no parameter is trainable.
        """
        _check(betas=betas, weight_decay=weight_decay, clip=clip)
        self.strategy = weights if isinstance(weights, Strategy) else Strategy(weights)
        model, self._sharded = self.strategy.model, self.strategy.sharded_state
        if allocate is None:
            allocate = new_empty if (manager := automem.get_manager(model)) is None else manager.allocate_state
        self._lr, self._betas, self._weight_decay, self._clip = lr, betas, weight_decay, clip
        self._named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._muon, self._adamw_ratio = None, 1.0 if muon is None else muon.adamw_ratio
        if muon is not None:
            self._muon = Muon(self._named, muon, ownership=self.strategy.ownership(), allocate=allocate)
            log.info(str(self._muon))
        self._moments = {
            moment: {
                name: allocate(f"{moment}.{name}", value).zero_()
                for name, value in self._weights().items()
                if name not in self._matrices
            }
            for moment in MOMENTS
        }
        self._updates = 0
        self._gradient_scale = 1.0
        is_flat = flat and self.strategy.owns_gradients
        layers = [module.weight for module in model.modules() if isinstance(module, nn.Linear)] if is_flat else []
        self._flat = [weight for weight in layers if isinstance(weight, nn.Parameter)]
        self._allocate_flat_gradients(allocate)

    @classmethod
    def of_run(
        cls, model: Strategy | nn.Module, run: training.RunConfig, *, flat: bool = True, allocate: Allocator = new_empty
    ) -> Self:
        settings, dtype = run.optimizer, torch.bfloat16 if run.dtype == "bf16" else torch.float32
        muon = MuonConfig(settings.momentum, settings.newton_schulz_steps, dtype, settings.adamw_ratio)
        return cls(
            model,
            lr=partial(learning_rate_at, settings=run),
            betas=run.betas,
            weight_decay=run.weight_decay,
            clip=run.max_grad_norm,
            muon=muon if settings.kind == "muon" else None,
            flat=flat,
            allocate=allocate,
        )

    def zero_grad(self) -> None:
        """Clear the gradients."""
        hcops.optimizer.zero_grad(self._named.values())
        self._gradient_scale = 1.0
        self.strategy.is_summed = False

    def relocate(self, place: Allocator) -> None:
        """Replace every moment by the copy that `place` returns for its name. Requires that no gradient is held."""
        for moment, values in self._moments.items():
            self._moments[moment] = {name: place(f"{moment}.{name}", value) for name, value in values.items()}
        if self._muon is not None:
            self._muon.relocate(place)
        self._allocate_flat_gradients(place)

    def _allocate_flat_gradients(self, allocate: Allocator) -> None:
        """Let linear layers write their weight gradients into one buffer."""
        if self._flat:
            hcops.optimizer.flat_gradients(
                self._flat, zeros=lambda size: allocate("gradients", torch.empty(size, device="meta")).zero_()
            )

    def clip(self) -> float:
        """Let the next step scale the gradients to the maximum norm. Returns their norm over all parameters."""
        norm = self.strategy.norm(self._gradients())
        if self._clip is not None:
            self._gradient_scale = min(1.0, self._clip / (norm + NORM_EPSILON))
        return norm

    def accepts(self, norm: float) -> bool:
        """Return whether gradients of this norm (from `clip`) and their squares are finite."""
        return math.isfinite(norm) and norm * self._gradient_scale <= LARGEST_GRADIENT

    def step(self) -> dict[str, float]:
        """Clip the gradients, update the weights and clear the gradients; return grad_norm (before clipping) and lr.

        Raises:
            UserError: gradients are not finite (weights are unchanged), or are not summed over the ranks.
        """
        if self.strategy.is_exchanging and not self.strategy.is_summed:
            raise user_error(
                "optimizer step",
                got="gradients that are not summed over the ranks",
                expected="gradients of a backward pass through the strategy",
                fix="call `strategy.backward(loss)` instead of `loss.backward()`, with `last=True` in the last pass of a step",
            )
        if self._sharded is None and not self._gradients():
            raise user_error(
                "optimizer step",
                got="no gradient of any parameter",
                expected="a backward pass before each step",
                fix="call `strategy.backward(loss)` first, and do not clear the gradients before the step",
            )
        norm = self.clip()
        if not self.accepts(norm):
            raise user_error(
                f"gradients of update {self._updates + 1}",
                got=f"a norm of {norm}",
                expected=f"a finite norm, at most {LARGEST_GRADIENT:.3g} after clipping",
                fix="lower the learning rate, set clip, or check the batch; the last checkpoint is intact",
            )
        rate = self.update(self._updates + 1)
        self.zero_grad()
        return {"grad_norm": norm, "lr": rate}

    def update(self, number: int, *, ema: Ema | None = None, defers: bool = False) -> float:
        """Update parameters and averages for optimizer step `number`; return the learning rate.

        With `defers`, AutoMem may update tensors in a file during the next forward pass. Call `Strategy.wait_for_weights`
        before other access to weights, gradients, moments or averages.
        """
        rate = self._lr(number) if callable(self._lr) else self._lr
        weights, gradients = self._weights(), self._gradients()
        self._updates += 1
        if self._muon is not None:
            used = gradients.keys() if self._sharded is None else self._sharded.used
            self._muon.replace(gradients, used=used, scale=self._gradient_scale)
        if self._sharded is None:
            self._update(weights, gradients, rate=rate, number=number, ema=ema, defers=defers)
        else:
            # Also wait for weights of layers that the forward pass skipped, because weights in transit must not change.
            self._sharded.wait_for_weights()
            for index, names in enumerate(self._sharded.names):
                local = {name: weights[name] for name in names}
                self._update(local, gradients, rate=rate, number=number, ema=ema)
                self._sharded.send(index)  # sent while the next bucket is updated
        return rate

    def _update(
        self,
        weights: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        *,
        rate: float,
        number: int,
        ema: Ema | None,
        defers: bool = False,
    ) -> None:
        """Update these weights in one pass: scaling, decay, moments, weights, average; matrices by Muon's updates."""
        decay = 0.0 if ema is None else ema.decay(number)
        names = [name for name in weights if name in gradients and name not in self._matrices]
        sources = [
            weights,
            gradients,
            *(self._moments[moment] for moment in MOMENTS),
            *([] if ema is None else [ema.state]),
        ]
        columns = [[source[name] for name in names] for source in sources]
        adamw = partial(
            hcops.optimizer.adamw,
            lr=rate * self._adamw_ratio,
            betas=self._betas,
            eps=EPSILON,
            weight_decay=self._weight_decay,
            step=self._updates,
            gradient_scale=self._gradient_scale,
            ema_decay=decay,
        )

        def update(part: Sequence[Sequence[Tensor]]) -> None:
            adamw(*part[:4], averages=None if ema is None else part[4])

        if (manager := automem.get_manager(self.strategy.model)) is None:
            update(columns)
        else:
            manager.update(columns, update, read_only={1}, defers=defers)
        for name in (weights.keys() & gradients.keys()) - set(names):
            weights[name].mul_(1.0 - rate * self._weight_decay).sub_(gradients[name], alpha=rate)
        if ema is not None:  # weights without a gradient are unchanged, but their average still moves towards them
            for name in weights.keys() - set(names):
                ema.state[name].lerp_(weights[name], 1.0 - decay)

    @property
    def _matrices(self) -> Collection[str]:
        """Names of the weights that Muon updates instead of AdamW."""
        return () if self._muon is None else self._muon.names

    def _weights(self) -> dict[str, Tensor]:
        if self._sharded is not None:
            return self._sharded.weights()
        return {name: parameter.detach() for name, parameter in self._named.items()}

    def _gradients(self) -> dict[str, Tensor]:
        if self._sharded is not None:
            return self._sharded.gradients()
        return {name: parameter.grad for name, parameter in self._named.items() if parameter.grad is not None}

    def state(self) -> dict[str, Tensor]:
        """Return `step` and this rank's `exp_avg.<name>`, `exp_avg_sq.<name>` and Muon's `momentum.<matrix>`."""
        moments = {f"{moment}.{name}": value for moment in MOMENTS for name, value in self._moments[moment].items()}
        momenta = {} if self._muon is None else self._muon.state()
        return {"step": torch.tensor(float(self._updates)), **moments, **momenta}

    def pieces(self) -> list[TensorPiece]:
        """Return this rank's pieces of the state, named as in `state`. Under ZeRO-1 the first rank adds `step`."""
        local = self._sharded
        step = [TensorPiece.whole("step", torch.tensor(float(self._updates)))] if not local or local.is_first else []
        moments = [(f"{moment}.", *item) for moment in MOMENTS for item in self._moments[moment].items()]
        return [
            *step,
            *(
                TensorPiece.whole(moment + name, value) if local is None else local.piece(name, value, prefix=moment)
                for moment, name, value in moments
            ),
            *([] if self._muon is None else self._muon.pieces()),
        ]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a saved state from complete tensors by name. Raises UserError if it belongs to other parameters."""
        adamw_names = self._named.keys() - self._matrices
        expected = {"step", *(f"{MOMENTUM}.{name}" for name in self._matrices)}
        expected |= {f"{moment}.{name}" for moment in MOMENTS for name in adamw_names}
        if expected != set(tensors):
            raise user_error(
                "optimizer state of the checkpoint",
                got=f"{len(set(tensors) - expected)} unknown and {len(expected - set(tensors))} missing tensors",
                expected=f"moments of this model's parameters of {'adamw' if self._muon is None else 'muon'}",
                fix="start from a checkpoint of this run written by this version, or in an empty store",
            )
        self._updates = round(float(tensors["step"]))
        for moment in MOMENTS:
            for name, value in self._moments[moment].items():
                whole = tensors[f"{moment}.{name}"]
                value.copy_(whole if self._sharded is None else self._sharded.cut(name, whole))
        if self._muon is not None:
            self._muon.load(tensors)


def _check(*, betas: tuple[float, float], weight_decay: float, clip: float | None) -> None:
    invalid = [f"betas {betas}"] if not all(0.0 <= beta < 1.0 for beta in betas) else []
    invalid += [f"weight_decay {weight_decay}"] if weight_decay < 0.0 else []
    invalid += [f"clip {clip}"] if clip is not None and clip <= 0.0 else []
    if invalid:
        expected = "betas from 0 to below 1, weight_decay of 0 or more, clip above 0 or None"
        raise user_error("settings of the optimizer", got=", ".join(invalid), expected=expected, fix="correct them")
