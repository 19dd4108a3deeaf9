"""Checks that ranks agree before training: on the model, and on its use by an example; collective."""

import zlib
from collections.abc import Iterable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dithc.core.logging import user_error

MOST_NAMED = 3
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
Told = TypeVar("Told")


def check_model(model: nn.Module) -> None:
    """Raise UserError on every rank if names, shapes, types or values of parameters and buffers differ."""
    told = _gathered({name: _told(value) for name, value in _tensors(model).items()})
    first, fix = told[0], "create it from the same settings on all ranks, independent of the rank"
    for rank, other in enumerate(told):
        if list(other) != list(first):
            names = dict.fromkeys([*other, *first])
            odd = [name for name in names if (name in other) != (name in first)] or ["their order"]
            got = f"{len(other)} parameters and buffers, {len(first)} on rank 0; different: {_named(odd)}"
            raise user_error(f"model of rank {rank}", got=got, expected="the same model on every rank", fix=fix)
        if odd := [name for name in other if other[name][0] != first[name][0]]:
            got, wanted = (
                ", ".join(f"{name} of {one[name][0]}" for name in odd[:MOST_NAMED]) for one in (other, first)
            )
            raise user_error(f"model of rank {rank}", got=got, expected=f"{wanted}, as on rank 0", fix=fix)
        if odd := [name for name in other if other[name] != first[name]]:
            raise user_error(
                f"weights of rank {rank}",
                got=f"other values than rank 0 in {_named(odd)}",
                expected="the same weights on every rank before the first step",
                fix="call torch.manual_seed(...) with the same number on all ranks before creating the model, or load "
                "the same file on all",
            )


def check_trained(model: nn.Module) -> None:
    """Raise UserError if no parameter is trainable, or one is not fp32 on the CPU."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    lazy = [name for name, value in trained.items() if isinstance(value, nn.parameter.UninitializedParameter)]
    odd = lazy or [name for name, value in trained.items() if not value.is_cpu or value.dtype is not torch.float32]
    sparse = [name for name, part in model.named_modules() if isinstance(part, EMBEDDINGS) and part.sparse]
    if trained and not odd and not sparse:
        return
    got, fix = "no trainable parameter", "set requires_grad of the parameters to train"
    if sparse:
        got, fix = f"sparse gradients of {_named(sparse)}", "create the embedding with sparse=False"
    elif lazy:
        got, fix = f"uninitialized parameters: {_named(lazy)}", "call the model once before creating a strategy"
    elif odd:
        kinds = ", ".join(f"{name} of {trained[name].dtype} on {trained[name].device}" for name in odd[:MOST_NAMED])
        got, fix = kinds, "call model.float(); for bf16 arithmetic use torch.autocast around the forward pass"
    raise user_error("parameters of the model", got=got, expected="fp32 on the CPU, with dense gradients", fix=fix)


def check_used(names: Iterable[str], used: Iterable[str]) -> list[str]:
    """Return the trained parameters `names` without a gradient on any rank, given those `used` on this rank.

    Raises UserError on every rank if a parameter has a gradient on some ranks only.
    """
    told = [set(one) for one in _gathered(list(used))]
    everywhere, anywhere = set.intersection(*told), set.union(*told)
    if odd := [name for name in names if name in anywhere - everywhere]:
        ranks = [str(rank) for rank, one in enumerate(told) if odd[0] not in one]
        raise user_error(
            f"gradients of the example for settle: {_named(odd)}",
            got=f"none of {odd[0]} on rank {', '.join(ranks)}",
            expected="a gradient of the same parameters on every rank",
            fix="pass settle an example on each rank that uses all trained parameters; later steps may use a layer on "
            "some ranks only",
        )
    return [name for name in names if name not in anywhere]


def united(names: Iterable[str]) -> list[str]:
    """Return the union of all ranks' names, in equal order; collective."""
    return sorted({name for own in _gathered(list(names)) for name in own})


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _told(value: Tensor) -> tuple[str, int]:
    """Return a description of type and shape, and a checksum of the numbers."""
    kind = f"{value.dtype} {tuple(value.shape)}, {'trained' if value.requires_grad else 'not trained'}"
    own = value.detach().cpu().contiguous().reshape(-1)
    return kind, zlib.crc32(own.view(torch.uint8).numpy().data) if own.numel() else 0


def _gathered(own: Told) -> list[Told]:
    told: list[Told] = [own] * dist.get_world_size()
    dist.all_gather_object(told, own)
    return told


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
