"""What traces and plans have in common: text of JSON, and back."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Self

from dithc.sealed import parse


class JsonText:
    """A document that can be made of plain data, as text; `unreadable` makes the error of one that cannot be read."""

    unreadable: Callable[[str, str], Exception]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The reverse of `to_dict`."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Text of `to_dict`."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of `to_json`; UserError for invalid JSON or another document."""
        try:
            data = parse(text)
        except ValueError as error:
            raise cls.unreadable(str(error), "JSON") from error
        if not isinstance(data, dict):
            raise cls.unreadable(type(data).__name__, "an object")
        return cls.from_dict(data)
