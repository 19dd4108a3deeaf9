"""Sections of the schema, and suggestions for unknown keys and values."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

MAX_LISTED = 12
KEY_SYNONYMS = {
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
VALUE_SYNONYMS = {
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

    location: str
    model: type[BaseModel]
    within: str = ""


def sections(model: type[BaseModel], location: str = "", within: str = "") -> Iterator[ReferenceSection]:
    """Yield every section, each before the sections that it contains."""
    yield ReferenceSection(location, model, within)
    for name, field in model.model_fields.items():
        path = f"{location}.{name}" if location else name
        for part in parts_of(field.annotation):
            if get_origin(part) is dict:
                part, path = get_args(part)[1], f"{path}.NAME"
            for item in parts_of(part):
                if isinstance(item, type) and issubclass(item, BaseModel):
                    yield from sections(item, path, " or ".join(kinds(model)))


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
        for member in get_args(annotation):
            yield from parts_of(member)
    elif annotation is not NoneType:
        yield annotation


def models_at(model: type[BaseModel], location: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the models of a section at a location of pydantic, which consists of keys, positions and chosen kinds."""
    models: list[Any] = [model]
    for key in location:
        models = [part for kind in models for part in _parts_at(kind, key)]
    return [kind for kind in models if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _parts_at(kind: Any, key: int | str) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if key in kind.model_fields:
            yield from parts_of(kind.model_fields[str(key)].annotation)
        elif "kind" in kind.model_fields and key in get_args(kind.model_fields["kind"].annotation):
            yield kind  # pydantic's location contains the kind that it selected
    elif get_origin(kind) in (dict, list, tuple):
        yield from parts_of(get_args(kind)[-1])


def suggest_key(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return a suggestion for an unknown key: a similar key, sections that have the key, or all keys; may be empty."""
    *parents, key = location
    names = [name for section in models_at(model, parents) for name in section.model_fields]
    if meant := _similar(key, names, KEY_SYNONYMS, cutoff=0.6):
        return meant
    if paths := dict.fromkeys(
        f"{section.location}.{key}".lstrip(".") for section in sections(model) if key in section.model.model_fields
    ):
        return f"; keys of that name: {', '.join(list(paths)[:3])}"
    return f"; there are: {', '.join(names)}" if 0 < len(names) <= MAX_LISTED else ""


def suggest_value(value: object, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown value; empty if no known value is similar."""
    return _similar(value, known, VALUE_SYNONYMS, cutoff=0.5)


def _similar(value: object, names: Sequence[str], synonyms: Mapping[str, str], *, cutoff: float) -> str:
    name = str(value).lower()
    near = [synonyms[name]] if synonyms.get(name) in names else get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"; did you mean `{near[0]}`?" if near else ""
