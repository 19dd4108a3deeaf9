"""Hostile configurations from a seed: valid content with one error, as text or as a special file.

Reading must reject each of them in four lines that name the file and, if applicable, the line.
"""

import copy
import os
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dithc.config import load

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "config" / "experiments" / "demo.yaml"
# A file of this name in the working folder proves that a command ran.
PWNED = "pwned"
FORMS = ("$(%s)", "`%s`", "; %s", " && %s #", " | %s", "' ; %s ; '", '" ; %s ; "', "\n%s\n", "\\; %s")
COMMANDS = (*(f"r{form % f'touch {PWNED}'}" for form in FORMS), f"r > {PWNED}")
TEMPLATES = ("{config}", "{wildcards.run}", "{input:q}", "{0.__class__}", "${HOME}")
ODD_TEXTS = ("", " ", " r", "r ", "-r", "--help", "~/r", "r*", "r?", "[r]", "a" * 300)
ODD_LETTERS = ("\0", "\x1b[2J", "\u202e", "\ud800", "\r\n")
ODD_IN_NAMES = "./A \n{_é$'\u200b"
INFINITE = float("inf")
ODD_NUMBERS = (INFINITE, -INFINITE, INFINITE - INFINITE, 10**30, -(10**30), "1e309", True, False, "many", [1], {"a": 1})
PATHS = [
    tuple(key.split("."))
    for key in ("results", "store", "machine.prologue", "bench.automem.spill_folder", "bench.simulate.machine")
]
SECTIONS = ("datasets", "codecs", "runs", "extractors", "evaluations")


@dataclass(frozen=True)
class Trial:
    """Description of an error, a function that creates the entry at a path, and whether the report must name a line."""

    description: str
    make: Callable[[Path], None]
    has_line: bool = True


def demo() -> dict[str, Any]:
    return load(DEMO).model_dump(mode="json")


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*place, key))
    else:
        yield place, value


def with_value(content: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(content)
    part: Any = made
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return made


def yaml_writer(content: Any) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(yaml.safe_dump(content, allow_unicode=False).encode())  # type: ignore[func-returns-value]


def text_writer(text: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(text if isinstance(text, bytes) else text.encode())  # type: ignore[func-returns-value]


def trials(seed: int) -> Iterator[Trial]:
    """Yield trials of all types in turn, without end."""
    draws = random.Random(seed)
    content, text = demo(), DEMO.read_text()
    kinds = (number, path, title, name, reference, unknown_key, text_error, expanding_text, special_entry, wrong_type)
    while True:
        for kind in kinds:
            yield kind(draws, content, text)


def number(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    places = [
        place for place, value in leaves(content) if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    place, value = draws.choice(places), draws.choice(ODD_NUMBERS)
    return Trial(f"{place} is {value!r}", yaml_writer(with_value(content, place, value)))


def path(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Set a path to a command, a pattern, or invisible characters."""
    odd = f"r{draws.choice(ODD_LETTERS)}r"
    place, value = draws.choice(PATHS), draws.choice((*COMMANDS, *TEMPLATES, *ODD_TEXTS, odd))
    return Trial(f"{place} is {value!r}", yaml_writer(with_value(content, place, value)))


def title(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    place = draws.choice([("title",), ("datasets", "sentinel2", "title")])
    value = draws.choice(["a\nb", "a\x1b[31m", "a\u202eb", "a" * 501, 1, ["a"], {"a": "b"}, "a\ud800"])
    return Trial(f"{place} is {value!r}", yaml_writer(with_value(content, place, value)))


def name(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Set a name of an experiment or entry that is not a valid file name."""
    at = draws.randrange(4)
    odd = draws.choice([f"{'abc'[:at]}{draws.choice(ODD_IN_NAMES)}{'abc'[at:]}", "..", "-a", "a" * 65, ""])
    section = draws.choice(("name", *SECTIONS))
    if section == "name":
        return Trial(f"name is {odd!r}", yaml_writer(with_value(content, ("name",), odd)))
    made = copy.deepcopy(content)
    made[section][odd] = next(iter(made[section].values()))
    return Trial(f"{section}.{odd!r}", yaml_writer(made))


def reference(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Set a dangling or circular reference."""
    places = [
        place
        for place, value in leaves(content)
        if isinstance(value, str) and place[-1] in ("dataset", "codec", "run", "extractor", "init", "train_dataset")
    ]
    place = draws.choice(places)
    itself = place[1] if place[-1] == "init" else "nobody"
    return Trial(f"{place} is {itself!r}", yaml_writer(with_value(content, place, itself)), has_line=False)


def unknown_key(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Add an unknown key anywhere, including Snakemake template keys."""
    sections = [
        place[:-1] for place, _ in leaves(content) if not any(isinstance(key, int) for key in place) and len(place) != 2
    ]
    sections = [place for place in sections if place not in [(section,) for section in (*SECTIONS, "resources")]]
    place = (*draws.choice(sections), draws.choice(["learning_rate", "__use_yte__", "?os.system('touch pwned')", "<"]))
    return Trial(f"{place} exists", yaml_writer(with_value(content, place, draws.choice([True, 1, "a"]))))


def wrong_type(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Replace a section by a text, list, number or null."""
    places = [(section,) for section in (*SECTIONS, "machine", "bench", "resources")]
    places += [("runs", "pretrain"), ("runs", "pretrain", "model"), ("datasets", "sentinel2", "source")]
    place, value = draws.choice(places), draws.choice(["a", ["a"], 1, 1.5, [[]], "a: b"])
    return Trial(f"{place} is {value!r}", yaml_writer(with_value(content, place, value)))


def text_error(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Insert a text error: a duplicate key, a tab, invalid UTF-8, a tag, or an early end."""
    lines = text.splitlines()
    keys = [i for i, line in enumerate(lines) if line and line[0].isalpha() and line.rstrip().endswith(":")]
    at = draws.choice(keys)
    made: dict[str, str | bytes] = {
        "key twice": "\n".join([*lines, lines[at], "  {}"]),
        "inner key twice": "\n".join([*lines[: at + 1], "  twice: {}", "  twice: {}", *lines[at + 1 :]]),
        "tab": "\n".join([*lines[: at + 1], "\tcolour: 1", *lines[at + 1 :]]),
        "no UTF-8": "\n".join([*lines[:at], f"# {'x' * at}"]).encode() + b"\xff\xfe" + text.encode(),
        "Latin-1": f"title: Gel\xe4nde\n{text}".encode("latin-1"),
        "UTF-16": text.encode("utf-16"),
        "control": text[:at] + "\x00" + text[at:],
        "tag": f"title: !!python/object/apply:os.system ['touch {PWNED}']\n{text}",
        "other tag": f"seed: !!timestamp abc\n{text}",
        "long number": f"seed: {'9' * 5000}\n{text}",
        "no date": f"title: 2020-13-45\n{text}",
        "no key": f"? [a, b]\n: 1\n{text}",
        "two documents": f"{text}\n---\n{text}",
        "open bracket": f"{text}\nresources: [a, {{",
        "open quote": f'{text}\nresources: "a',
        "unknown name": f"{text}\nresources: *nothing",
    }
    description = draws.choice(sorted(made))
    return Trial(f"{description} at {at}", text_writer(made[description]))


def expanding_text(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Write a small text that expands to large or deep content."""
    of, width = draws.randrange(5, 12), draws.randrange(8, 12)
    laughs = ["a0: &a0 [ha, ha]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, of + 4))]
    maps = [
        "b0: &b0 {c: 1}",
        *(f"b{i}: &b{i} {{{', '.join(f'k{j}: *b{i - 1}' for j in range(width))}}}" for i in range(1, of + 4)),
    ]
    deep = draws.randrange(1000, 5000)
    made = {
        "laughs": "\n".join(laughs),
        "maps that laugh": "\n".join(maps),
        "holds itself": "resources: &a [*a]",
        "map that holds itself": "resources: &a {default: *a}",
        "chain": "\n".join(["c0: &c0 [a]", *(f"c{i}: &c{i} [*c{i - 1}]" for i in range(1, deep // 10))]),
        "flow": f"resources: {'[' * deep}{']' * deep}",
        "flow maps": f"resources: {'{a: ' * deep}1{'}' * deep}",
        "block": "\n".join(f"{' ' * i}a:" for i in range(deep // 4)),
        "block lists": f"resources: {'- ' * deep}a",
        "open": "[" * deep,
    }
    description = draws.choice(sorted(made))
    return Trial(description, text_writer(made[description]))


def special_entry(draws: random.Random, content: dict[str, Any], text: str) -> Trial:
    """Create an entry that is not a text file: folders, pipes, sockets, devices, or empty and oversized files."""

    def bound(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))

    made: dict[str, Callable[[Path], None]] = {
        "folder": lambda path: path.mkdir(),
        "pipe": lambda path: os.mkfifo(path),
        "link to a device": lambda path: path.symlink_to("/dev/zero"),
        "link to itself": lambda path: path.symlink_to(path),
        "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
        "nothing": lambda path: None,
        "socket": bound,
        "empty": text_writer(""),
        "comment": text_writer("# nothing\n"),
        "list": text_writer("- a\n- b\n"),
        "text": text_writer("a"),
        "number": text_writer("1"),
        "null": text_writer("null\n"),
        "too long": text_writer("# " + "x" * (1 << 20) + "\n" + text),
    }
    description = draws.choice(sorted(made))
    return Trial(description, made[description], has_line=False)
