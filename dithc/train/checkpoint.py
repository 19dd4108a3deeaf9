"""What a checkpoint of a training holds, how it is written through the store, and how it is taken up again."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dithc.comm import Group
from dithc.config import training
from dithc.log import logger, problem
from dithc.model import DiT
from dithc.runs import Lease, Store
from dithc.train.ema import Ema
from dithc.train.optimizer import Optimizer
from dithc.train.stop import Pace
from dithc.train.strategy import Strategy
from dithc.train.strategy_layout import Layout

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

    def files(self) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """The tensor files of a checkpoint, whole, on rank 0; every rank whose strategy writes goes through all of them."""
        yield Store.WEIGHTS["raw"], self.strategy.gather(self.model.state_dict())
        yield Store.WEIGHTS["ema"], self.strategy.gather(self.ema.state)
        yield OPTIMIZER_FILE, self.strategy.gather(self.optimizer.state())


def state_of(model: DiT, run: training.Run, strategy: Strategy) -> State:
    """The state of a training at step 0, from a model that the strategy has prepared."""
    optimizer = Optimizer(model, run, flat=strategy.owns_gradients and run.micro_batch is not None, norm=strategy.norm)
    return State(model, Ema(model, run.ema), optimizer, strategy)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.

    Raises:
        UserError: the file is missing, cut short or of another format.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise problem(
            f"{path} cannot be read",
            got=error,
            expected="a complete safetensors file",
            remedy="copy it again, or choose another",
        ) from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes a safetensors file.

    Raises:
        OSError: the disk is full or not writable.
    """
    try:
        save_file(
            {name: value.detach().contiguous() for name, value in tensors.items()}, path, metadata={"format": "pt"}
        )
    except SafetensorError as error:  # it wraps the system's error in its own
        raise OSError(str(error)) from error


def facts(
    *, run: training.Run, seed: int, model: DiT, codec: str, scale: float, layout: Layout, threads: int
) -> dict[str, Any]:
    """What is said in every checkpoint of a run: all that is needed to build the model again and to go on.

    `model` is whole, before a strategy leaves this rank its part.
    """
    trainable = sum(value.numel() for value in model.parameters())
    return {
        "seed": seed,
        "model": asdict(model.config) | {"input_size": list(model.config.size)},
        "num_classes": model.config.num_classes,
        "codec": codec,
        "latent": {"shape": [model.config.in_channels, *model.config.size], "scale": scale},
        "preset": run.model.preset,
        "parameters": trainable,
        "dtype": run.dtype,
        "global_batch": run.global_batch,
        "ema": run.ema.model_dump(mode="json"),
        "ranks": layout.size,
        "strategy": layout.name,
        "threads": threads,
    }


class Saver:
    """Writes checkpoints of a run: rank 0 alone, and only while the lease is still its own."""

    def __init__(
        self,
        store: Store,
        *,
        lease: Lease | None,
        group: Group,
        run: training.Run,
        said: dict[str, Any],
        num_samples: int,
        pace: Pace,
    ) -> None:
        self.store, self.lease, self.group, self.run = store, lease, group, run
        self.said, self.num_samples, self.pace = said, num_samples, pace
        self.last: int | None = None

    def save(self, state: State) -> None:
        """Writes the checkpoint of `state.step` and removes those no longer wanted.

        Raises:
            Lease.Held: another trainer has taken over the store (this one was thought dead).
            UserError: the disk is full or not writable.
        """
        if self.group.any(self._overtaken()):
            raise Lease.Held(
                problem(
                    f"the lease of {self.store.folder} was lost before the checkpoint of step {state.step}",
                    got="another trainer, or a lease file that was removed",
                    expected="the lease of this process",
                    remedy="nothing to do: the other trainer continues from the last checkpoint",
                )
            )
        self.last = state.step
        if self.group.rank > 0:
            if state.strategy.writes:
                for _ in state.files():  # rank 0 receives this rank's part of each
                    pass
            return
        begun = time.monotonic()
        position = state.step * self.run.global_batch
        meta = {"step": state.step, **self.said, "position": {"sample": position, "epoch": position / self.num_samples}}
        self.store.save(state.step, lambda folder: self._write(folder, state), meta=meta)
        if not self._overtaken():  # writing may have taken minutes; all ranks hear of it at the next checkpoint
            self.store.prune(saved=state.step, keep_last=self.run.keep_last, keep_every=self.run.segment_steps)
        seconds = time.monotonic() - begun
        self.pace.save(seconds)
        self.store.event("checkpoint", step=state.step, seconds=round(seconds, 3))
        log.info(f"checkpoint of step {state.step} written to {self.store.path(state.step)} in {seconds:.1f} s")

    def _overtaken(self) -> bool:
        return self.lease is not None and not self.lease.holds()

    @staticmethod
    def _write(folder: Path, state: State) -> None:
        for name, tensors in state.files():
            write_tensors(folder / name, tensors)


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
    for key in ("ranks", "threads"):
        if checkpoint.meta.get(key) != said[key]:
            log.warning(
                f"the checkpoint was written by {checkpoint.meta.get(key)} {key}, this job has {said[key]}: the order of "
                "samples is the same, sums are rounded differently"
            )
    if (before := checkpoint.meta.get("strategy", said["strategy"])) != said["strategy"]:
        log.info(f"the checkpoint was written under strategy {before}, this job has {said['strategy']}")
    cut = state.strategy.cut
    state.model.load_state_dict(cut(read_tensors(checkpoint.weights("raw"))))
    state.ema.load(cut(read_tensors(checkpoint.weights("ema"))))
    state.optimizer.load(cut(read_tensors(checkpoint.folder / OPTIMIZER_FILE)))
    state.step = checkpoint.step
