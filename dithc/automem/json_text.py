"""Common JSON form of traces and plans."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from dithc.sealed import parse


@dataclass(frozen=True, kw_only=True)
class JsonText:
    """A dataclass with a JSON form; subclasses define `_of` and `unreadable`."""

    schema: ClassVar[int] = 1

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        raise NotImplementedError

    @staticmethod
    def unreadable(got: str, expected: str) -> Exception:
        """Return the error of an invalid document."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the document as JSON-ready data."""
        return {"schema": self.schema, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse the output of `to_dict`; UserError for another schema, or missing or unknown fields."""
        if data.get("schema") != cls.schema:
            raise cls.unreadable(f"schema {data.get('schema')}", f"schema {cls.schema}")
        try:
            return cls._of({key: value for key, value in data.items() if key != "schema"})
        except (KeyError, TypeError, AttributeError) as error:
            raise cls.unreadable(str(error), "the fields of this version") from error

    def to_json(self) -> str:
        """Return the text of `to_dict`."""
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
