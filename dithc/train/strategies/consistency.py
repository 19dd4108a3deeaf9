"""Checks that ranks agree before training: on the model, and on its use by an example; collective."""

import zlib
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dithc.core.logging import user_error

MAX_NAMED = 3
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
T = TypeVar("T")


def check_model(model: nn.Module) -> None:
    """Raise UserError on every rank if names, shapes, types or values of parameters and buffers differ."""
    gathered = _all_gather({name: _describe(value) for name, value in _tensors(model).items()})
    first = gathered[0]
    for rank, other in enumerate(gathered):
        subject, expected = f"model of rank {rank}", "the same model on every rank"
        fix = "create it from the same settings on all ranks, independent of the rank"
        if list(other) != list(first):
            different = [name for name in {**other, **first} if (name in other) != (name in first)] or ["their order"]
            got = f"{len(other)} parameters and buffers, {len(first)} on rank 0; different: {_name_list(different)}"
        elif different := [name for name in other if other[name][0] != first[name][0]]:
            names = different[:MAX_NAMED]
            got, expected = (", ".join(f"{name} of {tensors[name][0]}" for name in names) for tensors in (other, first))
            expected += ", as on rank 0"
        elif different := [name for name in other if other[name] != first[name]]:
            subject, expected = f"weights of rank {rank}", "the same weights on every rank before the first step"
            got = f"other values than rank 0 in {_name_list(different)}"
            fix = "on all ranks, create the model after torch.manual_seed(...) with the same number, or load the same file"
        else:
            continue
        raise user_error(subject, got=got, expected=expected, fix=fix)


def check_trained(model: nn.Module) -> None:
    """Raise UserError if no parameter is trainable, or one is not fp32 on the CPU."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    lazy = [name for name, value in trained.items() if isinstance(value, nn.parameter.UninitializedParameter)]
    other = lazy or [name for name, value in trained.items() if not (value.is_cpu and value.dtype is torch.float32)]
    sparse = [name for name, part in model.named_modules() if isinstance(part, EMBEDDINGS) and part.sparse]
    if trained and not other and not sparse:
        return
    got, fix = "no trainable parameter", "set requires_grad of the parameters to train"
    if sparse:
        got, fix = f"sparse gradients of {_name_list(sparse)}", "create the embedding with sparse=False"
    elif lazy:
        got, fix = f"uninitialized parameters: {_name_list(lazy)}", "call the model once before creating a strategy"
    elif other:
        got = ", ".join(f"{name} of {trained[name].dtype} on {trained[name].device}" for name in other[:MAX_NAMED])
        fix = "call model.float(); for bf16 arithmetic use torch.autocast around the forward pass"
    raise user_error("parameters of the model", got=got, expected="fp32 on the CPU, with dense gradients", fix=fix)


def check_used(names: Iterable[str], used: Iterable[str], *, group: Any = None) -> list[str]:
    """Return the trained parameters `names` without a gradient on any rank of a group, given those `used` on this rank.

    Raises UserError on every rank if a parameter has a gradient on some ranks only.
    """
    gathered = [set(used_names) for used_names in _all_gather(list(used), group=group)]
    common, union = set.intersection(*gathered), set.union(*gathered)
    if different := [name for name in names if name in union - common]:
        ranks = [str(rank) for rank, used_names in enumerate(gathered) if different[0] not in used_names]
        raise user_error(
            f"gradients of the example for `prepare`: {_name_list(different)}",
            got=f"none of {different[0]} on rank {', '.join(ranks)}",
            expected="a gradient of the same parameters on every rank",
            fix="pass `prepare` an example on each rank that uses all trained parameters; later steps may use a layer on "
            "some ranks only",
        )
    return [name for name in names if name not in union]


def union_over_ranks(names: Iterable[str]) -> list[str]:
    """Return the union of all ranks' names, in equal order; collective."""
    return sorted({name for local in _all_gather(list(names)) for name in local})


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _describe(value: Tensor) -> tuple[str, int]:
    """Return a description of type and shape, and a checksum of the numbers."""
    kind = f"{value.dtype} {tuple(value.shape)}, {'trained' if value.requires_grad else 'not trained'}"
    local = value.detach().cpu().contiguous().reshape(-1)
    return kind, zlib.crc32(local.view(torch.uint8).numpy().data) if local.numel() else 0


def _all_gather(local: T, *, group: Any = None) -> list[T]:
    gathered: list[T] = [local] * dist.get_world_size(group)
    dist.all_gather_object(gathered, local, group=group)
    return gathered


def _name_list(names: list[str]) -> str:
    suffix = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + suffix
