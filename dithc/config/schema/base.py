"""Base class of the configuration models, and value types with their valid ranges.

Models reject unknown keys and are immutable. Numbers are finite, and booleans are not accepted as numbers.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from dithc.core.logging import user_error

MAX_SEED = 2**63 - 1  # seeds are stored as signed 64-bit integers
LONGEST_PART = 200  # bytes of a name in a path; file systems accept 255
# Characters with a meaning in shells, glob patterns and format strings. dithc quotes paths in its commands; scripts of a site
# and lines copied from a log may not.
NOT_IN_PATHS = "\"'`$\\;&|<>{}[]*?"


def _one_line(text: str) -> str:
    fault = next((letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")), None)
    if fault is not None:
        raise ValueError(f"expected one line of text without invisible characters; it contains U+{ord(fault):04X}")
    return text


def _path(text: str) -> str:
    fault = next((letter for letter in _one_line(text) if letter in NOT_IN_PATHS), None)
    if fault is not None:
        raise ValueError(f"{text!r} contains {fault}; a path must not contain {NOT_IN_PATHS}: rename it or link to it")
    if text != text.strip() or text.startswith(("-", "~")):
        raise ValueError(f"{text!r} starts or ends with a space, or starts with - or ~, which dithc does not expand")
    if any(len(part.encode()) > LONGEST_PART for part in text.split("/")):
        raise ValueError(f"a name in this path is longer than {LONGEST_PART} bytes")
    return text


def _address(text: str) -> str:
    parts = urlsplit(_one_line(text))
    if parts.scheme not in ("https", "http") or not parts.hostname or " " in text:
        raise ValueError("expected an address such as https://HOST/PATH")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            "the address has a user, password, query or fragment, which every manifest would contain: remove it, and set a "
            "token in the variable DITHC_STAC_TOKEN"
        )
    return text


Count = Annotated[int, Field(ge=0, le=10**9)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Size = Annotated[int, Field(ge=1, le=65_536)]  # side, width or batch
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Meters = Annotated[float, Field(gt=0.0, le=100_000.0)]
Gib = Annotated[float, Field(gt=0.0, le=10.0**6)]
Rate = Annotated[float, Field(gt=0.0, le=1.0)]  # learning rate
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]  # part of file names
Preset = Annotated[str, Field(pattern=r"^(Modern)?DiT-(S|B|L|XL)/[248]$")]
Band = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_@.-]*$", max_length=32)]
Condition = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=64)
]  # of a network; may be a column of a plugin
Title = Annotated[str, Field(max_length=500), AfterValidator(_one_line)]
Address = Annotated[str, Field(max_length=500), AfterValidator(_address)]
Place = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_path)]


class Settings(BaseModel):
    """Base class of a section. The docstrings of its fields are their documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _reject_booleans(cls, content: Any) -> Any:
        """Reject booleans in number fields: Python treats true as 1, so `steps: yes` would be one step."""
        for name, value in content.items() if isinstance(content, Mapping) else ():
            field = cls.model_fields.get(name) if isinstance(name, str) else None
            values = value if isinstance(value, list) else [value]
            is_truth = field is None or bool in (field.annotation, *get_args(field.annotation))
            if not is_truth and any(isinstance(item, bool) for item in values):
                raise ValueError(f"`{name}` is {value!r}; true and false are not allowed here")
        return content

    def updated(self, **changes: Any) -> Self:
        """Return a copy with these values; UserError for an unknown key or an invalid value."""
        try:
            return type(self).model_validate({name: getattr(self, name) for name in self.model_fields_set} | changes)
        except ValidationError as error:
            faults = [
                ": ".join((*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")))
                for fault in error.errors()
            ]
            raise user_error(
                f"changed settings of {type(self).__name__}: {', '.join(changes)}",
                got="; ".join(faults),
                expected="keys and values of docs/config.md",
                fix="correct these values",
            ) from None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (fault := next(self._faults(), None)) is not None:
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        """Yield contradictions between values; the first one is reported. Subclasses override this method."""
        yield from ()

    def _check_unused(self, owner: str, *names: str) -> Iterator[str]:
        """Yield settings that only affect `owner` and differ from their defaults."""
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].default:
                yield f"`{name}` has no effect: it belongs to `{owner}`"
