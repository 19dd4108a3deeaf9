"""What a checkpoint of a training holds, and how it is taken up again; how it is written is in `saving.py`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dithc.config import training
from dithc.log import logger, problem
from dithc.model import DiT
from dithc.runs import Store
from dithc.tensors import Piece, read_tensors
from dithc.train.optimizer import Ema, Home, Optimizer, anywhere
from dithc.train.strategies import Layout, Strategy

OPTIMIZER_FILE = "optimizer.safetensors"
SAME_ON_RESUME = ("codec", "latent", "model", "seed", "global_batch")
log = logger(__name__)


@dataclass
class State:
    """All that changes during a training; under dp+tp, this rank's part of it."""

    model: DiT
    ema: Ema
    optimizer: Optimizer
    strategy: Strategy
    step: int = 0

    def pieces(self) -> dict[str, list[Piece]]:
        """What this rank holds, by file of a checkpoint: views, which the next step changes."""
        self.strategy.ready()
        zero, weights = self.strategy.zero, self.model.state_dict()
        whole = [Piece.whole(name, value) for name, value in weights.items()]
        held = {
            Store.WEIGHTS["raw"]: whole if zero is None else zero.weight_pieces(weights),
            Store.WEIGHTS["ema"]: self.ema.pieces(),
            **{Store.average_file(one.length): one.pieces() for one in self.ema.beside},
            OPTIMIZER_FILE: self.optimizer.pieces(),
        }
        return {file: self.strategy.pieces(pieces) for file, pieces in held.items()}


def state_of(model: DiT, run: training.Run, strategy: Strategy, *, home: Home = anywhere) -> State:
    """The state of a training at step 0, from a model that the strategy has prepared and settled, in memory that `home` gives."""
    flat, zero = strategy.owns_gradients and run.micro_batch is not None, strategy.zero
    holding = strategy.holding()
    optimizer = Optimizer(model, run, flat=flat, norm=strategy.norm, zero=zero, holding=holding, home=home)
    return State(model, Ema(model, run.ema, zero=zero, home=home), optimizer, strategy)


def facts(
    *, run: training.Run, seed: int, model: DiT, codec: str, scale: float, layout: Layout, threads: int
) -> dict[str, Any]:
    """What is said in every checkpoint of a run: all that is needed to build the model again and to go on.

    `model` is whole, before a strategy leaves this rank its part.
    """
    trainable = sum(value.numel() for value in model.parameters())
    return {
        "seed": seed,
        "model": model.config.described(),
        "num_classes": model.config.num_classes,
        "codec": codec,
        "latent": {"shape": [model.config.in_channels, *model.config.size], "scale": scale},
        "preset": run.model.preset,
        "parameters": trainable,
        "dtype": run.dtype,
        "objective": run.objective.model_dump(mode="json"),
        "global_batch": run.global_batch,
        "ema": run.ema.model_dump(mode="json", exclude_none=True),
        "micro_batch": run.micro_batch,
        "ranks": layout.size,
        "strategy": layout.name,
        "threads": threads,
    }


@torch.no_grad()
def take_up(checkpoint: Store.Checkpoint, state: State, *, said: dict[str, Any]) -> None:
    """Puts a checkpoint into `state`.

    Raises:
        UserError: it was made of other latents or for another model; the message names what differs.
    """
    for key in SAME_ON_RESUME:
        if checkpoint.meta.get(key) != said[key]:
            raise problem(
                f"checkpoint {checkpoint.folder} does not belong to this training: {key} differs",
                got=checkpoint.meta.get(key),
                expected=said[key],
                remedy="use the latents it was trained on, or another store",
            )
    for key in ("ranks", "threads", "micro_batch"):
        if (before := checkpoint.meta.get(key, said[key])) != said[key]:
            log.warning(
                f"the checkpoint was written with {key} {before}, this job has {said[key]}: the order of samples is the same, "
                "sums are rounded differently"
            )
    if (before := checkpoint.meta.get("strategy", said["strategy"])) != said["strategy"]:
        log.info(f"the checkpoint was written under strategy {before}, this job has {said['strategy']}")
    state.strategy.ready()
    cut, weights = state.strategy.cut, checkpoint.weights
    _load(state.model, cut(read_tensors(weights("raw"))), origin=checkpoint.folder)
    state.strategy.adopt()
    state.ema.load(cut(read_tensors(weights("ema"))))
    for average in state.ema.beside:
        average.load(cut(read_tensors(checkpoint.folder / Store.average_file(average.length))))
    state.optimizer.load(cut(read_tensors(checkpoint.folder / OPTIMIZER_FILE)))
    state.step = checkpoint.step


def _load(model: DiT, weights: Mapping[str, Tensor], *, origin: Path) -> None:
    """Gives the model all of its weights, one tensor at a time."""
    own = model.state_dict()
    if others := sorted(own.keys() ^ weights.keys()):
        raise problem(
            f"weights of checkpoint {origin}",
            got=f"{len(others)} tensors too many or missing, such as {others[0]}",
            expected=f"the {len(own)} tensors of this model",
            remedy="start in an empty store",
        )
    for name, value in own.items():
        saved = weights[name]
        if (saved.shape, saved.dtype) != (value.shape, value.dtype):
            raise problem(
                f"weights of checkpoint {origin}",
                got=f"{name} of {saved.dtype} {tuple(saved.shape)}",
                expected=f"{value.dtype} {tuple(value.shape)}, as this model has it",
                remedy="start in an empty store",
            )
        value.copy_(saved)
