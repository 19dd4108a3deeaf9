"""What was probably meant: the key or word of the schema that is nearest to one that it does not have."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

# What other programs call it.
ELSEWHERE = {
    "learning_rate": "lr",
    "batch_size": "global_batch",
    "batch": "global_batch",
    "gradient_clip": "clip",
    "max_grad_norm": "clip",
    "num_steps": "steps",
    "max_steps": "steps",
    "iterations": "steps",
    "warmup": "warmup_steps",
    "precision": "dtype",
    "wd": "weight_decay",
    "cfg_scale": "guidance",
    "cfg": "guidance",
    "guidance_scale": "guidance",
    "num_samples": "images",
    "n_samples": "images",
    "data": "dataset",
    "vae": "codec",
    "root": "path",
    "type": "kind",
    "num_layers": "depth",
    "patch_size": "preset",
}
WORDS = {
    "mpirun": "mpiexec",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float": "fp32",
    "epsilon": "noise",
    "eps": "noise",
}


def parts_of(annotation: Any) -> Iterator[Any]:
    """The kinds that an annotation names, without what wraps them."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from parts_of(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from parts_of(one)
    elif annotation is not NoneType:
        yield annotation


def models_at(model: type[BaseModel], place: Sequence[int | str]) -> list[type[BaseModel]]:
    """The sections that may stand at a place of a configuration, given as pydantic names it: keys, positions, chosen kinds."""
    found: list[Any] = [model]
    for word in place:
        found = [part for one in found for part in _below(one, word)]
    return [one for one in found if isinstance(one, type) and issubclass(one, BaseModel)]


def _below(kind: Any, word: int | str) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if word in kind.model_fields:
            yield from parts_of(kind.model_fields[str(word)].annotation)
        elif "kind" in kind.model_fields and word in get_args(kind.model_fields["kind"].annotation):
            yield kind  # which pydantic names when it has chosen it
    elif get_origin(kind) in (dict, list, tuple):
        yield from parts_of(get_args(kind)[-1])


def key_meant(model: type[BaseModel], place: Sequence[int | str]) -> str:
    """Words on an unknown key at a place: the nearest that is known there, or where it belongs; empty where nothing is near."""
    *above, word = place
    known = [name for one in models_at(model, above) for name in one.model_fields]
    if (same := ELSEWHERE.get(str(word).lower())) in known:
        return f"; did you mean `{same}`?"
    if near := get_close_matches(str(word).lower(), known, n=1):
        return f"; did you mean `{near[0]}`?"
    if places := dict.fromkeys(one for one in places_of(model) if one.rpartition(".")[2] == word):
        return f"; keys of that name: {', '.join(list(places)[:3])}"
    return f"; there are: {', '.join(known)}" if 0 < len(known) <= 12 else ""


def word_meant(word: object, known: Sequence[str]) -> str:
    """Words on a value that is none of those known; empty where none is near."""
    if (same := WORDS.get(str(word).lower())) in known:
        return f"; did you mean `{same}`?"
    near = get_close_matches(str(word).lower(), known, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else ""


def places_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the schema with dots, NAME for names that a person chooses; the shallow ones first."""
    deeper: list[tuple[Any, str]] = []
    for name, field in model.model_fields.items():
        yield prefix + name
        deeper += [(part, prefix + name) for part in parts_of(field.annotation)]
    for part, above in deeper:
        while get_origin(part) is dict:
            part, above = get_args(part)[1], f"{above}.NAME"
        for one in parts_of(part):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from places_of(one, f"{above}.")
