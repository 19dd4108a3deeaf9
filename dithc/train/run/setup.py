"""Makes the model a training starts from: fresh from the seed, or the weights of an earlier run or of a file."""

from pathlib import Path
from typing import Literal

import torch

from dithc.config import training
from dithc.log import logger, problem
from dithc.model import DiT, DiTConfig, adapt
from dithc.runs import Store
from dithc.tensors import read_tensors
from dithc.train.checkpoints import read_weights

Weights = Literal["ema", "raw"]
log = logger(__name__)


def fresh_model(run: training.Run, *, shape: tuple[int, int, int], num_classes: int, seed: int) -> DiT:
    """Return the network of a run, initialized from `seed` alone, so equal on every rank.

    `shape` is (C, height, width) of a latent. A label dropout above 0 adds the null label.
    """
    chosen = run.model
    width, depth, heads = chosen.shape
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = DiT.from_preset(
            chosen.preset,
            input_size=shape[1:],
            in_channels=shape[0],
            num_classes=num_classes,
            learn_sigma=chosen.learn_sigma,
            class_dropout_prob=run.label_dropout,
            hidden_size=width,
            depth=depth,
            num_heads=heads,
            **chosen.block._asdict(),
        )
    count = sum(value.numel() for value in model.parameters())
    log.info(f"{chosen.preset} with {count:,} parameters, {model.config.num_tokens} tokens, {num_classes} classes")
    return model


def start_from_run(model: DiT, manifest: Path, *, weights: Weights, codec: str) -> None:
    """Load another run's last checkpoint into `model` and log all changes; UserError if damaged or of another architecture."""
    store, step = Store.of_run(manifest)
    checkpoint = store.open(step, manifest=manifest)
    if checkpoint.meta["codec"] != codec:
        log.warning(
            f"the initial weights were trained on latents of codec {checkpoint.meta['codec']}, these are of {codec}: "
            "what was learnt carries over only as far as the two spaces are alike"
        )
    source = DiTConfig(**checkpoint.meta["model"])
    state, changes = adapt(read_tensors(checkpoint.weights(weights)), model, source=source)
    model.load_state_dict(state)
    _say(f"{weights} weights of step {step} in {checkpoint.folder}", changes)


def start_from_file(model: DiT, path: Path, *, weights: Weights, guides: bool = False) -> None:
    """Load weights of another program into `model` (see `read_weights`) and log the changes.

    Raises:
        UserError: the file is unreadable, of another architecture, or lacks the null label although `guides`.
    """
    found, source = read_weights(path, model.config, weights=weights)
    if guides and source is not None and source.null_label is None:
        raise problem(
            f"weights in {path}, from which `guide.by: start` is to guide",
            got="a network without a null label",
            expected="one that predicts without a label",
            fix="start from weights that were trained with dropped labels, or leave `guide` out",
        )
    state, changes = adapt(found, model, source=source)
    model.load_state_dict(state)
    _say(f"weights in {path}", changes)
    log.info(
        "initial weights: the file does not say on latents of which codec they were trained; what was learnt carries over "
        "only as far as that space and this one are alike"
    )


def _say(origin: str, changes: list[str]) -> None:
    log.info(f"initial weights: {origin}")
    for change in changes:
        log.info(f"initial weights: {change}")
    if not changes:
        log.info("initial weights: they fit without a change")
