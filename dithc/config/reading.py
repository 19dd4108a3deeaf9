"""YAML as a person writes it: a plain file of text, keys that are there once, and where each of them stands.

Refused with file and line: what is no YAML, no UTF-8, a key twice (YAML takes the last and says nothing), texts that unfold to
more than any configuration is (names for parts that hold names for parts ...), and tags, by which other programs make objects.
"""

import stat
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dithc.log import UserError, problem
from dithc.sealed import has_seal, unseal

MOST_BYTES = 1 << 20
KINDS = {type(None): "nothing", list: "a list"}
MOST_DEPTH = 32  # the schema has 6
MOST_NODES = 100_000  # with every name of a part (&, *) written out
TAGS = {
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge")
}


@dataclass(frozen=True)
class Text:
    """What a file says.

    Attributes:
        origin: how messages call the file.
        values: its content.
        places: line and column of each key, by the keys and positions that lead to it.
    """

    origin: str
    values: dict[str, Any]
    places: Mapping[tuple[str, ...], tuple[int, int]]


def read(path: Path) -> Text:
    """Reads a file of YAML (or JSON) that is a mapping.

    Raises:
        UserError: there is no such file, it is none that can be read to its end, or what it says is refused.
    """
    content = _bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise problem(
            f"configuration file {path}, line {line} is no UTF-8",
            got=f"byte 0x{content[error.start]:02x}",
            expected="text in UTF-8",
            fix=f"save it as UTF-8, for instance: iconv -f latin1 -t utf-8 {path}",
        ) from None
    if has_seal(text):
        return _sealed(text, path)
    return parse(text, origin=f"configuration file {path}")


def _sealed(text: str, path: Path) -> Text:
    """Return the content of a file that dithc wrote for its jobs."""
    try:
        return Text(str(path), unseal(text), {})
    except ValueError as error:
        raise problem(
            f"configuration file {path} was changed after it was written",
            got=error,
            expected="the bytes that dithc wrote under its seal",
            fix="delete it: the next run writes it again; edit your own configuration file, or a copy without the key `seal`",
        ) from None


def parse(text: str, *, origin: str) -> Text:
    """What a text of YAML says; `origin` is how messages call it.

    Raises:
        UserError: as `read`.
    """
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
        raise _no_yaml(origin + place, error.problem or error.context or "") from None
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        raise _no_yaml(f"{origin}, line {line}", getattr(error, "reason", str(error))) from None
    if not isinstance(values, dict):
        raise problem(
            f"{origin} is empty or no mapping",
            got=KINDS.get(type(values), "a single value"),
            expected="keys such as `datasets:` and `runs:`",
            fix="start from config/experiments/demo.yaml",
        )
    return Text(origin, values, places)


def _no_yaml(place: str, said: str) -> UserError:
    return problem(
        f"{place} is no YAML that is read here",
        got=" ".join(said.split()),
        expected="YAML as in config/experiments/demo.yaml: spaces before keys, no tabs; every key once",
        fix="correct that line",
    )


def _bytes(path: Path) -> bytes:
    """All of a plain file; a pipe or a device is not opened, as nobody may ever write there, or somebody for ever."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISREG(kind):
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) <= MOST_BYTES:
                return content
        said = ((stat.S_ISREG, f"more than {MOST_BYTES} bytes"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"))
        got = next((words for is_kind, words in said if is_kind(kind)), "a device or a socket")
    except FileNotFoundError:
        raise problem(
            f"configuration file {path} does not exist",
            got="no such file",
            expected="a YAML file such as config/experiments/demo.yaml",
            fix="check the path; it is relative to the working folder",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        got = getattr(error, "strerror", None) or str(error)
    raise problem(
        f"configuration file {path} cannot be read",
        got=got,
        expected=f"a plain file of at most {MOST_BYTES} bytes, such as config/experiments/demo.yaml",
        fix="name the file itself, readable; what a program writes, write into a file first",
    )


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which measures what it reads while it reads."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._measures: dict[int, tuple[int, int]] = {}  # nodes and depth of a part, written out

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As the base; ends at a part that is too deep, too large, or holds itself."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth > MOST_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"parts within parts, more than {MOST_DEPTH} deep", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            measure = self._measures.get(id(node))
            if measure is None:
                if self._depth and node.end_mark is None:  # a name for a part that is not complete: it holds itself
                    raise yaml.composer.ComposerError(None, None, "a part that holds itself", mark)
                measure = self._measures[id(node)] = self._measure(node)
            if measure[0] > MOST_NODES or measure[1] + self._depth > MOST_DEPTH:
                said = f"names of parts (&, *) that unfold to more than {MOST_NODES} values or {MOST_DEPTH} levels"
                raise yaml.composer.ComposerError(None, None, said, mark)
        return node

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        if not isinstance(node, yaml.CollectionNode):
            return 1, 0
        parts = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]
        measures = [self._measures[id(part)] for part in parts]
        return 1 + sum(nodes for nodes, _ in measures), 1 + max((depth for _, depth in measures), default=0)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As the base; a value that its tag does not take is a fault of its line."""
        if node.tag not in TAGS:
            raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag}", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, IndexError, AttributeError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _find_places(node: yaml.Node, place: tuple[str, ...], places: dict[tuple[str, ...], tuple[int, int]]) -> None:
    """Notes line and column of every key.

    Raises:
        ConstructorError: a key is there twice.
    """
    if isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text", key.start_mark)
            if name in seen:
                said = f"key `{name}` is there twice, first in line {seen[name]}"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen[name], places[(*place, name)] = line, (line, key.start_mark.column + 1)
            _find_places(value, (*place, name), places)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            places[(*place, str(number))] = value.start_mark.line + 1, value.start_mark.column + 1
            _find_places(value, (*place, str(number)), places)
