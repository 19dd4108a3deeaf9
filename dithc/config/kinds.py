"""Faults of values in words of the configuration; of one that may be of several kinds, `auto` or a number, say, one fault."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# How pydantic names the kind that it tried: a word in the place of a fault that no configuration has.
KIND = re.compile(r"(literal|list|tuple|dict|function-\w+)\[.*\]|constrained-\w+|int|float|bool|str", re.DOTALL)
OF_NO_KIND = "of_no_kind"  # the type of a fault of a value that is of none of its kinds
WORDS = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "a text",
    "model_type": "a section, `key: value`",
    "model_attributes_type": "a section, `key: value`",
    "dict_type": "a section, `key: value`",
    "literal_error": "{expected}",
}
RANGES = {
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number from {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def of_keys(faults: Sequence[Any], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The faults; of a value that may be of several kinds those in it, where it is of a kind, else one of itself."""
    found: dict[Any, list[tuple[dict[str, Any], bool]]] = {}
    for number, fault in enumerate(faults):
        first, place = _place(tuple(fault["loc"]), content)
        is_inside = first is not None and len(place) > first
        found.setdefault(number if first is None else place[:first], []).append(({**fault, "loc": place}, is_inside))
    return [told for same in found.values() for told in _of_one(same)]


def _of_one(faults: Sequence[tuple[dict[str, Any], bool]]) -> list[dict[str, Any]]:
    """Of what each kind would have of one value, and whether that is of a part of it: what is to be told."""
    inside = {told["loc"]: told for told, is_inside in reversed(faults) if is_inside}
    if inside:
        return [*inside.values()][::-1]
    first, said = faults[0][0], list(dict.fromkeys(_said(told) for told, _ in faults))
    return (
        [first] if len(faults) == 1 else [{**first, "type": OF_NO_KIND, "msg": f"Input should be {' or '.join(said)}"}]
    )


def _place(words: tuple[Any, ...], content: Any) -> tuple[int | None, tuple[Any, ...]]:
    """A place without the kinds that were tried there, and how many of its words stand before the first of these."""
    first: int | None = None
    place: list[Any] = []
    for word in words:
        is_there = (isinstance(content, Mapping) and word in content) or (
            isinstance(content, list | tuple) and isinstance(word, int) and word < len(content)
        )
        if not is_there and isinstance(word, str) and KIND.fullmatch(word):
            first = len(place) if first is None else first
            continue
        content = content[word] if is_there else content
        place.append(word)
    return first, tuple(place)


def in_words(fault: Mapping[str, Any]) -> str:
    """What is wrong with a value, as a sentence of a few words."""
    if fault["type"] == "string_pattern_mismatch" and fault["loc"][-1:] == ("[key]",):
        return "Names have small letters, digits and - only"
    if fault["type"] in WORDS:
        return f"Input should be {_said(fault)}"
    return str(fault["msg"]).removeprefix("Value error, ")


def shown(value: object) -> str:
    """A value as a configuration has it."""
    if value is None:
        return "nothing"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _said(fault: Mapping[str, Any]) -> str:
    """What one kind would have been."""
    if words := (WORDS | RANGES).get(fault["type"]):
        return words.format(**fault.get("ctx", {}))
    return str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
