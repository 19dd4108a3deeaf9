"""Faults of values in words of the configuration; of one that may be of several kinds, `auto` or a number, say, one fault."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# How pydantic names the kind that it tried: a word in the place of a fault that no configuration has.
KIND = re.compile(r"(literal|list|tuple|dict|function-\w+)\[.*\]|constrained-\w+|int|float|bool|str", re.DOTALL)
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
}


def of_keys(faults: Sequence[Any], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The faults, of a value that may be of several kinds one: of what is in it where that is of a kind, else of itself."""
    found: dict[Any, dict[str, Any]] = {}
    for number, fault in enumerate(faults):
        first, place = _place(tuple(fault["loc"]), content)
        told = {**fault, "loc": place}
        if first is None:
            found[number] = told
            continue
        key, is_inside = place[:first], len(place) > first
        known = found.setdefault(key, told)
        if known is told:
            continue
        if is_inside > (len(known["loc"]) > first):
            found[key] = told
        elif not is_inside and len(known["loc"]) == first:
            said = dict.fromkeys([*known.get("said", [_said(known)]), _said(fault)])
            found[key] = {**known, "type": "of_no_kind", "said": [*said], "msg": f"Input should be {' or '.join(said)}"}
    return list(found.values())


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
