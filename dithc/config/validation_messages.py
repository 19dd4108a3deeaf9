"""Validation errors of pydantic in terms of the configuration, with one error per value also for union types."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# Names of union members in pydantic's locations. They are not keys of the configuration.
KIND = re.compile(r"(literal|list|tuple|dict|function-\w+)\[.*\]|constrained-\w+|int|float|bool|str", re.DOTALL)
NO_UNION_MEMBER = "of_no_kind"  # error type of a value that matches no member of a union
TYPE_NAMES = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "an integer"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "string_type": "a text",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a section, `key: value`"),
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


def merge_faults(faults: Sequence[Any], content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the errors; those of a union are merged into errors inside the value, or one error of the value."""
    groups: dict[Any, list[tuple[dict[str, Any], bool]]] = {}
    for number, fault in enumerate(faults):
        first, place = _place(tuple(fault["loc"]), content)
        is_inside = first is not None and len(place) > first
        groups.setdefault(number if first is None else place[:first], []).append(({**fault, "loc": place}, is_inside))
    return [fault for same in groups.values() for fault in _merge_value_faults(same)]


def _merge_value_faults(faults: Sequence[tuple[dict[str, Any], bool]]) -> list[dict[str, Any]]:
    """Merge the errors of one value; each has a flag, true for errors inside the value."""
    inside = {fault["loc"]: fault for fault, is_inside in reversed(faults) if is_inside}
    if inside:
        return [*inside.values()][::-1]
    first, expected = faults[0][0], " or ".join(dict.fromkeys(_expected(fault) for fault, _ in faults))
    return [first] if len(faults) == 1 else [{**first, "type": NO_UNION_MEMBER, "msg": f"Input should be {expected}"}]


def _place(location: tuple[Any, ...], content: Any) -> tuple[int | None, tuple[Any, ...]]:
    """Return a location without union members, and the position of the first union member."""
    first: int | None = None
    place: list[Any] = []
    for part in location:
        is_there = (isinstance(content, Mapping) and part in content) or (
            isinstance(content, list | tuple) and isinstance(part, int) and part < len(content)
        )
        if not is_there and isinstance(part, str) and KIND.fullmatch(part):
            first = len(place) if first is None else first
            continue
        content = content[part] if is_there else content
        place.append(part)
    return first, tuple(place)


def describe_fault(fault: Mapping[str, Any]) -> str:
    """Return the error of a value as a short sentence."""
    if fault["type"] == "string_pattern_mismatch" and fault["loc"][-1:] == ("[key]",):
        return "Names may contain only lower-case letters, digits and -"
    if fault["type"] in TYPE_NAMES:
        return f"Input should be {_expected(fault)}"
    return str(fault["msg"]).removeprefix("Value error, ")


def shown(value: object) -> str:
    if value is None:
        return "nothing"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _expected(fault: Mapping[str, Any]) -> str:
    if name := (TYPE_NAMES | RANGES).get(fault["type"]):
        return name.format(**fault.get("ctx", {}))
    return str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
