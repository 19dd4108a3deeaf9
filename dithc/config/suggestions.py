"""Sections of the schema, and suggestions for unknown keys and values."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

MOST_LISTED = 12
ELSEWHERE = {
    "learning_rate": "lr",
    "batch": "global_batch_size",
    "gradient_clip": "max_grad_norm",
    "clip_grad_norm": "max_grad_norm",
    "num_steps": "steps",
    "max_steps": "steps",
    "iterations": "steps",
    "warmup": "warmup_steps",
    "precision": "dtype",
    "wd": "weight_decay",
    "cfg_scale": "guidance_scale",
    "cfg": "guidance_scale",
    "num_samples": "num_images",
    "n_samples": "num_images",
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
"""Names of keys and values in other programs, with the names in dithc."""


class ReferenceSection(NamedTuple):
    """Section of the configuration: path with NAME for chosen names, model, and kind of the containing section."""

    place: str
    model: type[BaseModel]
    within: str = ""


def sections(model: type[BaseModel], place: str = "", within: str = "") -> Iterator[ReferenceSection]:
    """Yield every section, each before the sections that it contains."""
    yield ReferenceSection(place, model, within)
    for name, field in model.model_fields.items():
        below = f"{place}.{name}" if place else name
        for part in parts_of(field.annotation):
            if get_origin(part) is dict:
                part, below = get_args(part)[1], f"{below}.NAME"
            for one in parts_of(part):
                if isinstance(one, type) and issubclass(one, BaseModel):
                    yield from sections(one, below, " or ".join(kinds(model)))


def kinds(model: type[BaseModel]) -> list[str]:
    """Return the values of `kind` that select a model; empty for the only model of a section."""
    field = model.model_fields.get("kind")
    return [str(word) for word in get_args(field.annotation)] if field is not None and field.is_required() else []


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, without Annotated, unions and None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from parts_of(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from parts_of(one)
    elif annotation is not NoneType:
        yield annotation


def models_at(model: type[BaseModel], place: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the models of a section at a location of pydantic, which consists of keys, positions and chosen kinds."""
    found: list[Any] = [model]
    for word in place:
        found = [part for one in found for part in _below(one, word)]
    return [one for one in found if isinstance(one, type) and issubclass(one, BaseModel)]


def _below(kind: Any, word: int | str) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if word in kind.model_fields:
            yield from parts_of(kind.model_fields[str(word)].annotation)
        elif "kind" in kind.model_fields and word in get_args(kind.model_fields["kind"].annotation):
            yield kind  # pydantic's location contains the kind that it selected
    elif get_origin(kind) in (dict, list, tuple):
        yield from parts_of(get_args(kind)[-1])


def key_meant(model: type[BaseModel], place: Sequence[int | str]) -> str:
    """Return a suggestion for an unknown key: a similar key, sections that have the key, or all keys; may be empty."""
    *above, word = place
    known = [name for one in models_at(model, above) for name in one.model_fields]
    if (same := ELSEWHERE.get(str(word).lower())) in known:
        return f"; did you mean `{same}`?"
    if near := get_close_matches(str(word).lower(), known, n=1):
        return f"; did you mean `{near[0]}`?"
    if places := dict.fromkeys(
        f"{one.place}.{word}".lstrip(".") for one in sections(model) if word in one.model.model_fields
    ):
        return f"; keys of that name: {', '.join(list(places)[:3])}"
    return f"; there are: {', '.join(known)}" if 0 < len(known) <= MOST_LISTED else ""


def word_meant(word: object, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown value; empty if no known value is similar."""
    if (same := WORDS.get(str(word).lower())) in known:
        return f"; did you mean `{same}`?"
    near = get_close_matches(str(word).lower(), known, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else ""
