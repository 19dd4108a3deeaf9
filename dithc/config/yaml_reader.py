"""Reading of YAML files with the line and column of every key.

Rejects invalid YAML, text other than UTF-8, duplicate keys (PyYAML silently uses the last), tags that construct
objects, and aliases that expand to a huge document. The parser is PyYAML, because Snakemake reads the same files with
it: YAML 1.2 parsers such as ruamel.yaml read `yes`, `on` and `010` differently."""

import stat
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dithc.core.integrity import has_checksum, load_checksummed
from dithc.core.logging import UserError, user_error

MAX_BYTES = 1 << 20
KINDS = {type(None): "nothing", list: "a list"}
MAX_DEPTH = 32  # the schema has 6 levels
MAX_NODES = 100_000  # after the expansion of aliases
TAGS = {
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge")
}


@dataclass(frozen=True)
class YamlDocument:
    """Content of a file: its name in messages, its values, and line and column of each key by path."""

    origin: str
    values: dict[str, Any]
    places: Mapping[tuple[str, ...], tuple[int, int]]


def read(path: Path) -> YamlDocument:
    """Read a YAML or JSON file that contains a mapping; raises UserError if it is missing, unreadable or rejected."""
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise user_error(
            f"configuration file {path}, line {line} is not valid UTF-8",
            got=f"byte 0x{content[error.start]:02x}",
            expected="text in UTF-8",
            fix=f"save it as UTF-8, for example: iconv -f latin1 -t utf-8 {path}",
        ) from None
    if has_checksum(text):
        return _read_checksummed(text, path)
    return parse(text, origin=f"configuration file {path}")


def _read_checksummed(text: str, path: Path) -> YamlDocument:
    try:
        return YamlDocument(str(path), load_checksummed(text), {})
    except ValueError as error:
        raise user_error(
            f"configuration file {path} was changed after it was written",
            got=error,
            expected="the bytes that dithc wrote",
            fix="delete it, the next run rewrites it; edit your configuration file, or a copy without the key `checksum`",
        ) from None


def parse(text: str, *, origin: str) -> YamlDocument:
    """Parse YAML text; `origin` is its name in messages. Raises UserError if it is rejected."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        places: dict[tuple[str, ...], tuple[int, int]] = {}
        if node is not None:
            _find_places(node, (), places)
        values = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise _invalid(origin + place, error.problem or error.context or "") from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise _invalid(f"{origin}, line {line}", getattr(error, "reason", str(error))) from None
    if not isinstance(values, dict):
        raise user_error(
            f"{origin} does not contain a mapping",
            got=KINDS.get(type(values), "a single value"),
            expected="keys such as `datasets:` and `runs:`",
            fix="start from config/experiments/demo.yaml",
        )
    return YamlDocument(origin, values, places)


def _invalid(place: str, reason: str) -> UserError:
    return user_error(
        f"{place}: invalid YAML",
        got=" ".join(reason.split()),
        expected="spaces for indentation, unique keys",
        fix="correct this line; config/experiments/demo.yaml is an example",
    )


def _read_bytes(path: Path) -> bytes:
    """Read a plain file. Pipes and devices are not opened, because reading them may block or never end."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISREG(kind):
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) <= MAX_BYTES:
                return content
        types = ((stat.S_ISREG, f"more than {MAX_BYTES} bytes"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
        got = next((description for is_type, description in types if is_type(kind)), "a device or a socket")
    except FileNotFoundError:
        raise user_error(
            f"configuration file {path} does not exist",
            got="no such file",
            expected="a YAML file such as config/experiments/demo.yaml",
            fix="correct the path, which is relative to the working folder",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        got = getattr(error, "strerror", None) or str(error)
    raise user_error(
        f"configuration file {path} cannot be read",
        got=got,
        expected=f"a plain file of at most {MAX_BYTES} bytes, such as config/experiments/demo.yaml",
        fix="name a readable file; redirect the output of a program into a file first",
    )


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with limits on depth and expanded size."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._measures: dict[int, tuple[int, int]] = {}  # number of nodes and depth after expansion, by id of the node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; raises ComposerError if it is too deep, too large or recursive."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"more than {MAX_DEPTH} nested levels", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            measure = self._measures.get(id(node))
            if measure is None:
                if self._depth and node.end_mark is None:  # an alias to an incomplete node
                    raise yaml.composer.ComposerError(None, None, "a recursive alias", mark)
                measure = self._measures[id(node)] = self._measure(node)
            if measure[0] > MAX_NODES or measure[1] + self._depth > MAX_DEPTH:
                reason = f"aliases (*) that expand to more than {MAX_NODES} values or {MAX_DEPTH} levels"
                raise yaml.composer.ComposerError(None, None, reason, mark)
        return node

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        if not isinstance(node, yaml.CollectionNode):
            return 1, 0
        parts = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]
        measures = [self._measures[id(part)] for part in parts]
        return 1 + sum(nodes for nodes, _ in measures), 1 + max((depth for _, depth in measures), default=0)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct an object; raises ConstructorError with its line for other tags and invalid values."""
        if node.tag not in TAGS:
            raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag}", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, IndexError, AttributeError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _find_places(node: yaml.Node, place: tuple[str, ...], places: dict[tuple[str, ...], tuple[int, int]]) -> None:
    """Record line and column of every key; raises ConstructorError for a duplicate key."""
    if isinstance(node, yaml.MappingNode):
        lines: dict[Hashable, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is not a scalar", key.start_mark)
            if name in lines:
                reason = f"duplicate key `{name}`, first in line {lines[name]}"
                raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
            lines[name], places[(*place, name)] = line, (line, key.start_mark.column + 1)
            _find_places(value, (*place, name), places)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            places[(*place, str(number))] = value.start_mark.line + 1, value.start_mark.column + 1
            _find_places(value, (*place, str(number)), places)
