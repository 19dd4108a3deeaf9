"""Reads a configuration from files or mappings, with errors that name the key."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dithc.config.experiment import Experiment
from dithc.config.kinds import OF_NO_KIND, in_words, of_keys, shown
from dithc.config.layers import Layer, laid_over, of_words, overridden
from dithc.config.nearest import key_meant, word_meant
from dithc.config.reading import Text, read
from dithc.log import logger, problem

T = TypeVar("T")
SECTIONS = ("datasets", "codecs", "runs", "extractors", "evaluations")  # without one of them there is nothing to do
BELOW = f"\n{' ' * len('  got:      ')}"  # where the next of several faults stands
MOST_SHOWN = 200  # characters of a value that is refused
DEMO = Path("config/experiments/demo.yaml")
QUOTED = re.compile(r"'([^']*)'")
NAMED = re.compile(r"[a-z_]+(\.[A-Za-z0-9_-]+)+")
log = logger("dithc.workflow")


def load(source: Path | Mapping[str, Any]) -> Experiment:
    """The experiment described by a YAML (or JSON) file or by a mapping; what it does not say has its default.

    Raises:
        UserError: a key is unknown, a value is wrong, or a name refers to nothing; each fault is named with its key.
    """
    if isinstance(source, Path):
        text = read(source)
        return _checked(text.values, origin=str(source), texts=[text])
    return _checked(source, origin="the configuration", texts=[])


def _checked(content: Mapping[str, Any], *, origin: str, texts: Sequence[Text]) -> Experiment:
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        is_named = len(texts) == 1 and texts[0].origin.endswith(origin)
        faults = [_told(fault, texts, is_named=is_named) for fault in of_keys(error.errors(), content)]
        raise problem(
            f"{origin} has {len(faults)} fault{'s' * (len(faults) > 1)}",
            got=BELOW.join(faults),
            expected="keys and values as docs/config.md says",
            fix="correct what is named above",
        ) from None


def named(section: Mapping[str, T], name: str, *, key: str) -> T:
    """The entry `name` of a section of the configuration.

    Args:
        section: such as `experiment.datasets`.
        name: what a person asked for.
        key: the section's name, for the message.

    Raises:
        UserError: there is none of that name; those that are there are listed.
    """
    if name not in section:
        raise problem(
            f"there is no {name!r} in the section `{key}` of the configuration",
            got=name,
            expected=f"one of {', '.join(section) or 'none: the section is empty'}",
            fix="correct the name, or add it to the configuration",
        )
    return section[name]


def _told(fault: Any, texts: Sequence[Text], *, is_named: bool) -> str:
    """A fault in one line: its key, where that stands (without the file, where that is named already), and what is wrong."""
    place, said = tuple(fault["loc"]), _said(fault)
    if not place and (named := NAMED.match(said)):  # of several keys together: the message begins with one of them
        return f"{named.group(0)}{_stands(tuple(named.group(0).split('.')), texts, is_named=is_named)}{said[named.end() :]}"
    return f"{'.'.join(map(str, place)) or 'experiment'}{_stands(tuple(map(str, place)), texts, is_named=is_named)}: {said}"


def _stands(words: tuple[str, ...], texts: Sequence[Text], *, is_named: bool) -> str:
    """Where a key stands, or, where it is missing, the section that lacks it; the last of several files counts."""
    for depth in range(len(words), 0, -1):
        for text in reversed(texts):
            # Of a source, codec or extractor, the kind that was chosen is among the words, which no file says.
            upper = words[:depth]
            for known in [upper, *(upper[:i] + upper[i + 1 :] for i in range(len(upper)))]:
                if known and (at := text.places.get(known)) is not None:
                    return f" (line {at[0]}, column {at[1]}{'' if is_named else f' of {text.origin}'})"
    return ""


def _said(fault: Any) -> str:
    text, context = in_words(fault), fault.get("ctx", {})
    if fault["type"] == "extra_forbidden":
        return "unknown key" + key_meant(Experiment, fault["loc"])
    if fault["type"] == "union_tag_not_found":
        return "`kind` is missing, which says of what kind it is"
    if fault["type"] == "union_tag_invalid":
        known = QUOTED.findall(context["expected_tags"])
        return f"`kind` is {context['tag']!r}, which is none of {', '.join(known)}{word_meant(context['tag'], known)}"
    if isinstance(fault["input"], Mapping) or fault["type"] == "value_error":
        return text
    value = shown(fault["input"])
    known = {"literal_error": context.get("expected", ""), OF_NO_KIND: text}.get(fault["type"], "")
    meant = word_meant(fault["input"], QUOTED.findall(known))
    return f"{text}, got {value if len(value) <= MOST_SHOWN else value[:MOST_SHOWN] + '...'}{meant}"


def read_profile(folder: Path) -> tuple[dict[str, Any], Any]:
    """A profile of the workflow engine, and the section `machine` of the configuration that it sets.

    Raises:
        UserError: the profile is missing, or is no YAML.
    """
    path = folder / "config.yaml"
    content = read(path).values
    said = content.get("config") or []
    if not isinstance(said, Mapping):
        words = said if isinstance(said, list) else [said]
        said = of_words(str(path), [str(word) for word in words]).values
    return content, said.get("machine", {})


def experiment_of(
    config: Mapping[str, Any] | Sequence[Path],
    *,
    files: Sequence[Path] = (),
    above: Sequence[tuple[str, Sequence[str]]] = (),
) -> Experiment:
    """The experiment of a workflow engine's merged configuration; the demo, with what was changed, where it defines nothing.

    Settings are laid one over the other key by key: defaults, the files in their order, profiles, the command line. What a
    setting of the machine, or one of a profile, stands in the place of is said in the log.

    Args:
        config: the configuration, or files of which each is laid over those before it, as the engine does.
        files: those that a merged configuration is from. The engine reads them too, and of a key that is there twice takes the
            last, silently.
        above: words of the form `key=value` that are laid over the files, by their origin: each profile, then the command line.

    Raises:
        UserError: as `load`.
    """
    texts = [read(path) for path in (files if isinstance(config, Mapping) else config)]
    if not isinstance(config, Mapping):
        merged: dict[str, Any] = {}
        for text in texts:
            merged = laid_over(merged, text.values)
        config = merged
    layers = [of_words(origin, words) for origin, words in above]
    for layer in layers:
        config = laid_over(config, layer.values)
    profiled = {key for layer in layers[:-1] for key in layer.values}
    told = [Layer(_plain(text.origin), text.values) for text in texts] if len(layers) > 1 else []
    for line in overridden([*told, *layers], {*profiled, "machine"}):
        log.info(line)
    config = {key: config[key] for key in config if key != "seal"}  # which is none of those of a file that dithc wrote
    if not any(config.get(name) for name in SECTIONS):
        config = {**read(DEMO).values, **config}
    # What the engine takes for its own in these files (templates, which run code) is not in what it hands on.
    taken = {key: value for text in texts for key, value in text.values.items() if key not in Experiment.model_fields}
    return _checked({**config, **taken}, origin="the configuration", texts=texts)


def _plain(origin: str) -> str:
    """The name of a file as a person writes it: relative, where it is below the working folder."""
    return origin.removeprefix("configuration file ").replace(f"{Path.cwd()}/", "")
