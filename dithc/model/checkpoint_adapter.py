"""Adaptation of a checkpoint to a model with other classes, channels, size or learned sigma; reports each change.

If the number of classes differs, the class table is reinitialized and the null row kept. The first channels are kept.
New channels start at zero, so that they neither disturb the tokens nor predict anything at first. The position
embedding is recomputed. Width, depth, patch and MLP must agree.

Legend: C input channels, D width, T tokens, p side of a patch, R rows of the label table.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import UserError, user_error
from dithc.core.weights import unwrapped
from dithc.model.dit import DiT
from dithc.model.presets import DiTConfig

State = dict[str, Tensor]

PATCH = "x_embedder.proj.weight"
POSITIONS = "pos_embed"
CONDITIONS = "y_embedder.conditions."
GAUSSIAN = "gaussian."
LABELS = "y_embedder.embedding_table.weight"
HEAD = ("final_layer.linear.weight", "final_layer.linear.bias")
MLP = "blocks.0.mlp.fc2.weight"


class _Source(NamedTuple):
    """Properties of a checkpoint's model, read from its shapes."""

    channels: int
    kept: list[int]  # channel of the model for each of the first channels
    parts: int  # 1: the head predicts noise; 2: noise and sigma
    num_classes: int
    has_null: bool
    groups: tuple[training.BandGroup, ...]

    def keeps_all(self, channels: int) -> bool:
        return self.channels == channels and self.kept == list(range(channels))


def adapt_state_dict(
    state: Mapping[str, Tensor], model: DiT, *, source: DiTConfig | None = None, channels: Sequence[int] = ()
) -> tuple[State, list[str]]:
    """Fit the weights of a checkpoint to `model`; modifies neither.

    Args:
        state: Weights of a DiT under the official names.
        model: Target model. New parts of the result are copies of its (initial) weights.
        source: Configuration of the checkpoint. Without it the last label is the null label, the blocks are original
            (as in the released checkpoints), and num_heads is not checked.
        channels: Channel of `model` for each channel of the checkpoint; by default the first channels are kept.

    Returns:
        A state that `model.load_state_dict` accepts strictly, and one sentence per change (empty without changes).

    Raises:
        UserError: The block type, width, depth, patch, heads or MLP differ, or keys are missing or unknown.
    """
    target = {key: value.detach() for key, value in model.state_dict().items()}
    result, changes = _adapt_conditions(state, target)
    _check_architecture(result, target, model.config, source)
    layout = _inspect(result, source, model.config.patch_size**2, channels, model.config.in_channels)
    for step in (_adapt_labels, _adapt_input, _adapt_head, _adapt_positions, _adapt_gaussian):
        changes += step(result, target, model.config, layout)
    for key, value in result.items():
        if value.shape != target[key].shape:
            raise _mismatch_error(key, got=tuple(value.shape), expected=tuple(target[key].shape))
    return result, changes


def official_state_dict(checkpoint: object, *, weights: Literal["ema", "model"] = "ema") -> State:
    """Return the weights in a DiT checkpoint: the entry `weights` of a training dictionary, or the state of a release.

    Returns tensors by name, without the prefixes of wrappers such as DistributedDataParallel and torch.compile. Raises
    UserError if the checkpoint lacks these weights.
    """
    expected = f"a mapping with the key {weights!r}, or a mapping of parameter names to tensors"
    fix = "pass the weights file of a DiT, or select the other set of weights"
    if not isinstance(checkpoint, Mapping):
        raise user_error("checkpoint", got=type(checkpoint).__name__, expected=expected, fix=fix)
    nested = {name for name in ("ema", "model") if isinstance(checkpoint.get(name), Mapping)}
    if nested and weights not in nested:
        raise user_error("checkpoint", got=f"only {nested.pop()!r} weights", expected=expected, fix=fix)
    entries = unwrapped(checkpoint[weights] if nested else checkpoint, source="checkpoint")
    state = {name: value for name, value in entries.items() if isinstance(value, Tensor)}
    if not state or len(state) != len(entries):
        keys = [str(key) for key in entries if not isinstance(entries[key], Tensor)]
        raise user_error("checkpoint", got=f"not tensors: {shorten(keys)}", expected=expected, fix=fix)
    return state


def _check_architecture(state: Mapping[str, Tensor], target: State, new: DiTConfig, old: DiTConfig | None) -> None:
    kind = training.BlockKind() if old is None else old.block
    if kind != new.block:
        raise _mismatch_error("block type", got=kind, expected=new.block)
    if PATCH in state and state[PATCH].dim() == 4:
        if state[PATCH].shape[0] != new.hidden_size:
            raise _mismatch_error("hidden_size", got=state[PATCH].shape[0], expected=new.hidden_size)
        if state[PATCH].shape[2:] != target[PATCH].shape[2:]:
            raise _mismatch_error("patch_size", got=tuple(state[PATCH].shape[2:]), expected=new.patch_size)
    if (has_gaussian := any(key.startswith(GAUSSIAN) for key in state)) != new.gaussian_prediction:
        raise _mismatch_error("gaussian_prediction", got=has_gaussian, expected=new.gaussian_prediction)
    depth = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
    if depth and depth != new.depth:
        raise _mismatch_error("depth", got=depth, expected=new.depth)
    if MLP in state and state[MLP].shape[1] != new.mlp_width:
        raise _mismatch_error("MLP width", got=state[MLP].shape[1], expected=new.mlp_width)
    if old is not None and old.num_heads != new.num_heads:
        raise _mismatch_error("num_heads", got=old.num_heads, expected=new.num_heads)
    fix = "pass the weights of a DiT; extract them from a wrapping dictionary with official_state_dict"
    check_names(state, target, owner="the official DiT state dictionary", fix=fix)


def _inspect(
    state: Mapping[str, Tensor], source: DiTConfig | None, area: int, kept: Sequence[int], new_channels: int
) -> _Source:
    channels, out = state[PATCH].shape[1], state[HEAD[0]].shape[0] // area
    if out not in (channels, 2 * channels):
        raise _mismatch_error("output channels", got=out, expected=f"{channels}, or {2 * channels} with learned sigma")
    has_null = source is None or source.null_label is not None
    kept = list(kept or range(min(channels, new_channels)))
    groups = () if source is None else source.band_groups
    return _Source(channels, kept, out // channels, state[LABELS].shape[0] - has_null, has_null, groups)


def _adapt_conditions(state: Mapping[str, Tensor], target: State) -> tuple[State, list[str]]:
    """Return the state with the conditions of the target; new conditions start without effect on the output."""
    old, new = ({_condition(key) for key in keys if key.startswith(CONDITIONS)} for keys in (state, target))
    result = {key: value for key, value in state.items() if _condition(key) not in old - new}
    result |= {key: value.clone() for key, value in target.items() if _condition(key) in new - old}
    added = [f"condition {name} added: the output does not depend on it yet" for name in sorted(new - old)]
    return result, added + [f"condition {name} dropped: the model does not have it" for name in sorted(old - new)]


def _condition(key: str) -> str:
    """Return the name of the condition of a weight; empty for other weights."""
    return key.removeprefix(CONDITIONS).partition(".")[0] if key.startswith(CONDITIONS) else ""


def _adapt_labels(state: State, target: State, new: DiTConfig, old: _Source) -> list[str]:
    has_null = new.null_label is not None
    if (old.num_classes, old.has_null) == (new.num_classes, has_null):
        return []
    table, result, changes = state[LABELS], target[LABELS].to(state[LABELS].dtype).clone(), []  # tables (R, D)
    if old.num_classes == new.num_classes:
        result[: new.num_classes] = table[: new.num_classes]
    else:
        changes.append(f"class table reinitialized: {old.num_classes} classes in the checkpoint, {new.num_classes} now")
    if old.has_null and has_null:
        result[-1] = table[-1]
        changes.append("null label kept")
    elif has_null:
        changes.append("null label initialized: the checkpoint has no row for it")
    elif old.has_null:
        changes.append("null label dropped: the model has no row for it")
    state[LABELS] = result
    return changes


def _adapt_input(state: State, target: State, new: DiTConfig, old: _Source) -> list[str]:
    if old.keeps_all(new.in_channels):
        return []
    result = torch.zeros(target[PATCH].shape, dtype=state[PATCH].dtype)  # (D, C, p, p)
    result[:, old.kept] = state[PATCH][:, : len(old.kept)]
    state[PATCH] = result
    return [f"patch embedding: {_describe(old, new.in_channels)}"]


def _adapt_head(state: State, target: State, new: DiTConfig, old: _Source) -> list[str]:
    """Rearrange the rows of the head, which are ordered (place in the patch, noise or sigma, channel)."""
    area, parts = new.patch_size**2, new.out_channels // new.in_channels
    if old.keeps_all(new.in_channels) and old.parts == parts:
        return []
    kept_parts = min(old.parts, parts)
    for key in HEAD:
        trailing = state[key].shape[1:]  # (D) of the weight, () of the bias
        rows = state[key].reshape(area, old.parts, old.channels, *trailing)  # (p*p, 1 or 2, C, ...)
        result = torch.zeros((area, parts, new.in_channels, *trailing), dtype=rows.dtype)
        result[:, :kept_parts, old.kept] = rows[:, :kept_parts, : len(old.kept)]
        state[key] = result.reshape(-1, *trailing)
    changes = []
    if not old.keeps_all(new.in_channels):
        changes.append(f"final layer: {_describe(old, new.in_channels)}")
    if old.parts != parts:
        changes.append(f"final layer: sigma {'initialized to zero' if parts > old.parts else 'dropped'}")
    return changes


def _adapt_positions(state: State, target: State, new: DiTConfig, old: _Source) -> list[str]:
    table = target[POSITIONS]  # (1, T, D)
    if state[POSITIONS].shape == table.shape and torch.allclose(state[POSITIONS].float(), table.float(), atol=1e-4):
        return []
    state[POSITIONS] = table.clone()
    return [f"position embedding recomputed for a grid of {new.grid[0]} x {new.grid[1]} patches"]


def _adapt_gaussian(state: State, target: State, new: DiTConfig, old: _Source) -> list[str]:
    constants = {key: value for key, value in target.items() if key.startswith(GAUSSIAN)}
    is_kept = old.keeps_all(new.in_channels) and {bands for _, bands, _ in old.groups} == {
        bands for _, bands, _ in new.band_groups
    }
    if not constants or (is_kept and all(state[key].shape == value.shape for key, value in constants.items())):
        return []
    state |= {key: value.clone() for key, value in constants.items()}
    return ["Gaussian prediction estimated for the new channels, groups and size"]


def _describe(old: _Source, new: int) -> str:
    kept = len(old.kept)
    remainder = f"{new - kept} initialized to zero" if new > kept else f"{old.channels - kept} dropped"
    place = "" if old.kept == list(range(kept)) else f" as channels {', '.join(map(str, old.kept))}"
    return f"first {kept} channels kept{place}, {remainder}"


def _mismatch_error(name: str, *, got: object, expected: object) -> UserError:
    fix = "use the preset and overrides of the checkpoint"
    return user_error(f"checkpoint does not fit the model: {name}", got=got, expected=expected, fix=fix)


def check_names(state: Iterable[str], known: Iterable[str], *, owner: str, fix: str) -> None:
    expected, names = set(known), set(state)
    missing, unknown = sorted(expected - names), sorted(names - expected)
    if missing or unknown:
        got = f"missing: {shorten(missing)}; unknown: {shorten(unknown)}"
        raise user_error("names of the weights", got=got, expected=f"the {len(expected)} names of {owner}", fix=fix)


def shorten(names: list[str], limit: int = 6) -> str:
    """Return the first `limit` names and the number of omitted names."""
    text = ", ".join(names[:limit]) or "none"
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"
