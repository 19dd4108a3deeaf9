"""Merging of settings from several origins key by key, and a list of the overridden values."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dithc.config.reading import parse


class Layer(NamedTuple):
    """Settings of one origin; `origin` is its name in messages."""

    origin: str
    values: Mapping[str, Any]


def of_words(origin: str, words: Sequence[str]) -> Layer:
    """Parse arguments of the form `key=value`; a value in braces is YAML. Raises UserError for invalid YAML."""
    values: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        is_mapping = text.lstrip().startswith("{")
        part = parse(text, origin=f"`{key}` of {origin}").values if is_mapping else _without_quotes(text)
        values = laid_over(values, {key.strip(): part})
    return Layer(origin, values)


def _without_quotes(text: str) -> str:
    """Remove quotes around a value, as Snakemake does."""
    bare = text.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"" else text


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; values of `above` replace lists and scalars."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = laid_over(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return merged


def overridden(layers: Sequence[Layer], sections: set[str]) -> list[str]:
    """Return a sentence for each key of these sections with different values in two layers."""
    seen: dict[str, tuple[str, str]] = {}
    found: dict[str, str] = {}
    for layer in layers:
        for key, value in _leaves({name: part for name, part in layer.values.items() if name in sections}):
            before, origin = seen.get(key, (value, layer.origin))
            if before != value:
                found[key] = f"{key}: {value} ({layer.origin}) overrides {before} ({origin})"
            seen[key] = value, layer.origin
    return list(found.values())


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), json.dumps(value) if value is None or isinstance(value, bool) else str(value)
