"""Settings of several origins, one laid over the other key by key, and what one says in the place of another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dithc.config.reading import parse


class Layer(NamedTuple):
    """What one origin says.

    Attributes:
        origin: how messages call it.
        values: the settings.
    """

    origin: str
    values: Mapping[str, Any]


def of_words(origin: str, words: Sequence[str]) -> Layer:
    """What words of the form `key=value` say; a value in braces is YAML.

    Raises:
        UserError: a value in braces is no YAML.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, _, text = word.partition("=")
        is_mapping = text.lstrip().startswith("{")
        part = parse(text, origin=f"`{key}` of {origin}").values if is_mapping else _without_quotes(text)
        values = laid_over(values, {key.strip(): part})
    return Layer(origin, values)


def _without_quotes(text: str) -> str:
    """As Snakemake reads it, a text in quotes is what stands between them."""
    bare = text.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"" else text


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others over them, key by key; a list, and what is no mapping, is replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = laid_over(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return merged


def overridden(layers: Sequence[Layer], sections: set[str]) -> list[str]:
    """A sentence for each key of these sections that a layer sets to another value than a layer below it."""
    seen: dict[str, tuple[str, str]] = {}
    found: dict[str, str] = {}
    for layer in layers:
        for key, value in _leaves({name: part for name, part in layer.values.items() if name in sections}):
            before, origin = seen.get(key, (value, layer.origin))
            if before != value:
                found[key] = f"{key}: {value} ({layer.origin}) in the place of {before} ({origin})"
            seen[key] = value, layer.origin
    return list(found.values())


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield (
                prefix + str(key),
                "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value),
            )
