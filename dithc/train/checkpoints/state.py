"""Content of a checkpoint, and resuming from it; `writer.py` writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dithc.config import training
from dithc.core.artifacts import CheckpointStore
from dithc.core.logging import get_logger, user_error
from dithc.core.tensor_files import TensorPiece, read_tensors
from dithc.engine import native
from dithc.engine.native import instruction_sets
from dithc.latents import Latents
from dithc.model import DiT
from dithc.train.checkpoints.weights import network_kind
from dithc.train.job import TrainingJob
from dithc.train.optimizer import Ema, Optimizer, OuterState
from dithc.train.state_placement import Allocator, new_empty
from dithc.train.strategies import RankGrid, Strategy

OPTIMIZER_FILE = "optimizer.safetensors"
SAME_ON_RESUME = ("codec", "latent", "model", "seed", "global_batch_size")
log = get_logger(__name__)


@dataclass(kw_only=True)
class ModuleState:
    """State of any training run: weights and optimizer; `kind` is the network description in its files."""

    model: nn.Module
    optimizer: Optimizer
    strategy: Strategy
    step: int = 0
    kind: Mapping[str, str] = field(default_factory=dict)

    def pieces(self) -> dict[str, list[TensorPiece]]:
        """Return this rank's pieces by checkpoint file; the next step overwrites them."""
        self.strategy.wait_for_weights()
        sharded, weights = self.strategy.sharded_state, tensors_of(self.model)
        full = [TensorPiece.whole(name, value) for name, value in weights.items()]
        contents = {
            CheckpointStore.WEIGHTS["raw"]: full if sharded is None else sharded.weight_pieces(weights),
            OPTIMIZER_FILE: self.optimizer.pieces(),
        }
        return {file: self.strategy.pieces(pieces) for file, pieces in contents.items()}

    @torch.no_grad()
    def restore(
        self, checkpoint: CheckpointStore.Checkpoint, *, metadata: dict[str, Any], keys: Sequence[str] = SAME_ON_RESUME
    ) -> None:
        """Load a checkpoint by any ranks; UserError if a value named in `keys` differs from this run's `metadata`."""
        for key in keys:
            if checkpoint.meta.get(key) != metadata[key]:
                raise user_error(
                    f"checkpoint {checkpoint.folder} does not belong to this training run: {key} differs",
                    got=checkpoint.meta.get(key),
                    expected=metadata[key],
                    fix="use the data and settings of the checkpoint, or another store",
                )
        instruction_sets.pin(checkpoint.meta["isa"], "the checkpoint was written with it")
        metadata["isa"] = native.instruction_set()
        for key in [key for key in ("isa", "ranks", "threads", "micro_batch_size") if key in metadata]:
            if (previous := checkpoint.meta.get(key, metadata[key])) != metadata[key]:
                log.warning(
                    f"the checkpoint was written with {key} {previous}, this job has {metadata[key]}: the order of "
                    "samples is the same, but sums round differently"
                )
        if (previous := checkpoint.meta.get("strategy", metadata["strategy"])) != metadata["strategy"]:
            log.info(f"the checkpoint was written under strategy {previous}, this job has {metadata['strategy']}")
        self.load(checkpoint)

    def load(self, checkpoint: CheckpointStore.Checkpoint) -> None:
        """Load an intact checkpoint; UserError if it belongs to another model, or is damaged."""
        self.strategy.wait_for_weights()
        cut = self.strategy.cut
        _load(self.model, cut(read_tensors(checkpoint.weights("raw"))), origin=checkpoint.folder)
        self.strategy.load_from_module()
        self.optimizer.load(cut(read_tensors(checkpoint.folder / OPTIMIZER_FILE)))
        self.step = checkpoint.step


@dataclass(kw_only=True)
class TrainingState(ModuleState):
    """Complete state of a training run of a DiT; under dp+tp, this rank's part. `outer`: only with local updates."""

    model: DiT
    ema: Ema
    outer: OuterState | None = None

    def pieces(self) -> dict[str, list[TensorPiece]]:
        averages = {CheckpointStore.WEIGHTS["ema"]: self.ema.pieces()}
        outer = {} if self.outer is None else {OuterState.FILE: self.outer.pieces()}
        return super().pieces() | {file: self.strategy.pieces(pieces) for file, pieces in (averages | outer).items()}

    def load(self, checkpoint: CheckpointStore.Checkpoint) -> None:
        super().load(checkpoint)
        cut = self.strategy.cut
        self.ema.load(cut(read_tensors(checkpoint.weights("ema"))))
        if self.outer is not None:
            self.outer.load(read_tensors(checkpoint.folder / OuterState.FILE))


def initial_state(
    model: DiT, run: training.RunConfig, strategy: Strategy, *, allocate: Allocator = new_empty
) -> TrainingState:
    """Return the state at step 0 of a model prepared by `strategy`, in memory from `allocate`."""
    optimizer = Optimizer.of_run(strategy, run, flat=run.micro_batch_size is not None, allocate=allocate)
    ema = Ema(model, run.ema, sharded=strategy.sharded_state, allocate=allocate)
    kind = network_kind(run.objective.prediction_type, run.model.block)
    return TrainingState(model=model, ema=ema, optimizer=optimizer, strategy=strategy, kind=kind)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model's state dictionary, tied weights once; UserError for any other value."""
    tensors, ids = dict[str, Tensor](), set[int]()
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise user_error(
                f"state dictionary of {type(model).__name__}",
                got=f"{name}, a {type(value).__name__}",
                expected="tensors only",
                fix="keep it in a buffer, or pass it as `metadata` of the checkpoints",
            )
        if id(value) not in ids:
            ids.add(id(value))
            tensors[name] = value.detach()
    return tensors


def checkpoint_metadata(job: TrainingJob, *, model: DiT, latents: Latents, layout: RankGrid) -> dict[str, Any]:
    """Return the metadata of every checkpoint, which rebuild `model` (before a strategy shards it) and resume the run."""
    run, info = job.run, latents.info
    return {
        "seed": job.seed,
        "model": model.config.described(),
        "num_classes": model.config.num_classes,
        "codec": info["codec"],
        "bands": info.get("bands"),
        "latent": {"shape": [model.config.in_channels, *model.config.size], "scale": info["scale"]},
        "preset": run.model.preset,
        "parameters": sum(value.numel() for value in model.parameters()),
        "dtype": run.dtype,
        "objective": run.objective.model_dump(mode="json"),
        "global_batch_size": run.global_batch_size,
        "ema": run.ema.model_dump(mode="json", exclude_none=True),
        "micro_batch_size": run.micro_batch_size,
        "ranks": layout.size,
        "strategy": layout.name,
        "threads": torch.get_num_threads(),
        "isa": native.instruction_set(),
    }


def _load(model: nn.Module, weights: Mapping[str, Tensor], *, origin: Path) -> None:
    tensors = tensors_of(model)
    if different := sorted(tensors.keys() ^ weights.keys()):
        raise user_error(
            f"weights of checkpoint {origin}",
            got=f"{len(different)} extra or missing tensors, such as {different[0]}",
            expected=f"the {len(tensors)} tensors of this model",
            fix="start in an empty store",
        )
    for name, value in tensors.items():
        saved = weights[name]
        if (saved.shape, saved.dtype) != (value.shape, value.dtype):
            raise user_error(
                f"weights of checkpoint {origin}",
                got=f"{name} of {saved.dtype} {tuple(saved.shape)}",
                expected=f"{value.dtype} {tuple(value.shape)}, as in this model",
                fix="start in an empty store",
            )
        value.copy_(saved)
