"""Loading of a configuration from files or mappings, with errors that name key, line and column.

Settings of several origins are merged key by key; the log lists overridden values."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from dithc.config.schema import ExperimentConfig, MachineConfig
from dithc.config.suggestions import suggest_key, suggest_value
from dithc.config.validation_messages import NO_UNION_MEMBER, describe_fault, merge_faults, shown
from dithc.config.yaml_reader import YamlDocument, parse, read
from dithc.core.logging import get_logger, user_error

SECTIONS = ("datasets", "codecs", "runs", "extractors", "evaluations")
FAULT_INDENT = f"\n{' ' * len('  got:      ')}"  # indentation of the second and later faults
MAX_SHOWN = 200  # characters of a rejected value
DEMO = Path("config/experiments/demo.yaml")
QUOTED = re.compile(r"'([^']*)'")
KEY = re.compile(r"[a-z_]+(\.[A-Za-z0-9_-]+)+")
log = get_logger("dithc.workflow")


class ConfigLayer(NamedTuple):
    """Settings of one origin; `origin` is its name in messages."""

    origin: str
    values: Mapping[str, Any]


def parse_arguments(origin: str, arguments: Sequence[str]) -> ConfigLayer:
    """Parse arguments of the form `key=value`; a value in braces is YAML. Raises UserError for invalid YAML."""
    values: dict[str, Any] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        is_mapping = text.lstrip().startswith("{")
        part = parse(text, origin=f"`{key}` of {origin}").values if is_mapping else _without_quotes(text)
        values = merge_settings(values, {key.strip(): part})
    return ConfigLayer(origin, values)


def _without_quotes(text: str) -> str:
    bare = text.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"" else text


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings key by key; values of `changes` replace lists and scalars."""
    merged = dict(base)
    for key, value in changes.items():
        lower = merged.get(key)
        if isinstance(value, Mapping) and isinstance(lower, Mapping):
            value = merge_settings(lower, value)
        merged[key] = value
    return merged


def overridden(layers: Sequence[ConfigLayer], sections: set[str]) -> list[str]:
    """Return a sentence for each key of these sections with different values in two layers."""
    latest: dict[str, tuple[str, str]] = {}
    sentences: dict[str, str] = {}
    for layer in layers:
        for key, value in _leaves({name: part for name, part in layer.values.items() if name in sections}):
            before, origin = latest.get(key, (value, layer.origin))
            if before != value:
                sentences[key] = f"{key}: {value} ({layer.origin}) overrides {before} ({origin})"
            latest[key] = value, layer.origin
    return list(sentences.values())


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def load(source: Path | Mapping[str, Any]) -> ExperimentConfig:
    """Load an experiment from a YAML or JSON file, or from a mapping; UserError lists all faults with their keys."""
    if isinstance(source, Path):
        text = read(source)
        return _checked(text.values, origin=str(source), texts=[text])
    return _checked(source, origin="the configuration", texts=[])


def _checked(content: Mapping[str, Any], *, origin: str, texts: Sequence[YamlDocument]) -> ExperimentConfig:
    try:
        return ExperimentConfig.model_validate(content)
    except ValidationError as error:
        is_named = len(texts) == 1 and texts[0].origin.endswith(origin)
        faults = [_line(fault, texts, is_named=is_named) for fault in merge_faults(error.errors(), content)]
        raise user_error(
            f"{origin} has {len(faults)} fault{'s' * (len(faults) > 1)}",
            got=FAULT_INDENT.join(faults),
            expected="keys and values of docs/config.md",
            fix="correct the keys above",
        ) from None


def _line(fault: Any, texts: Sequence[YamlDocument], *, is_named: bool) -> str:
    """Return a fault in one line: key, position and reason; `is_named` omits the file from the position."""
    place, reason = tuple(fault["loc"]), _reason(fault)
    if not place and (key_match := KEY.match(reason)):  # a check of several keys: its message starts with one key
        keys = tuple(key_match.group(0).split("."))
        return f"{key_match.group(0)}{_position(keys, texts, is_named=is_named)}{reason[key_match.end() :]}"
    words = tuple(map(str, place))
    return f"{'.'.join(words) or 'experiment'}{_position(words, texts, is_named=is_named)}: {reason}"


def _position(words: tuple[str, ...], texts: Sequence[YamlDocument], *, is_named: bool) -> str:
    """Return line and column of a key in the last file that has it; for a missing key, of the section that lacks it."""
    for depth in range(len(words), 0, -1):
        for text in reversed(texts):
            # Locations of pydantic contain the kind of a source, codec or extractor, which is not a key of a file.
            upper = words[:depth]
            for place in [upper, *(upper[:i] + upper[i + 1 :] for i in range(len(upper)))]:
                if place and (position := text.places.get(place)) is not None:
                    return f" (line {position[0]}, column {position[1]}{'' if is_named else f' of {text.origin}'})"
    return ""


def _reason(fault: Any) -> str:
    text, context = describe_fault(fault), fault.get("ctx", {})
    if fault["type"] == "extra_forbidden":
        return "unknown key" + suggest_key(ExperimentConfig, fault["loc"])
    if fault["type"] == "union_tag_not_found":
        return "`kind` is missing"
    if fault["type"] == "union_tag_invalid":
        tags = QUOTED.findall(context["expected_tags"])
        return f"`kind` is {context['tag']!r}, expected one of {', '.join(tags)}{suggest_value(context['tag'], tags)}"
    if isinstance(fault["input"], Mapping) or fault["type"] == "value_error":
        return text
    value = shown(fault["input"])
    choices = {"literal_error": context.get("expected", ""), NO_UNION_MEMBER: text}.get(fault["type"], "")
    meant = suggest_value(fault["input"], QUOTED.findall(choices))
    return f"{text}, got {value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + '...'}{meant}"


def load_experiment(
    config: Mapping[str, Any] | Sequence[Path],
    *,
    files: Sequence[Path] = (),
    overrides: Sequence[tuple[str, Sequence[str]]] = (),
) -> ExperimentConfig:
    """Load the experiment of a configuration that Snakemake merged; the demo with changes if it defines no sections.

    Settings override each other key by key: defaults, files in their order, profiles, command line. The log lists
    overridden values of section `machine` and of profiles. Raises UserError as `load`.

    Args:
        config: Merged configuration; or files, each of which overrides the files before it.
        files: Files of a merged configuration, read again because Snakemake silently uses the last of duplicate keys.
        overrides: Arguments of the form `key=value` that override the files, by origin: each profile, then the command line.
    """
    texts = [read(path) for path in (files if isinstance(config, Mapping) else config)]
    if not isinstance(config, Mapping):
        merged: dict[str, Any] = {}
        for text in texts:
            merged = merge_settings(merged, text.values)
        config = merged
    layers = [parse_arguments(origin, arguments) for origin, arguments in overrides]
    for layer in layers:
        config = merge_settings(config, layer.values)
    profiled = {key for layer in layers[:-1] for key in layer.values}
    named_files = [
        ConfigLayer(text.origin.removeprefix("configuration file ").replace(f"{Path.cwd()}/", ""), text.values)
        for text in texts
    ]
    for line in overridden([*(named_files if len(layers) > 1 else []), *layers], {*profiled, "machine"}):
        log.info(line)
    config = {
        key: config[key] for key in config if key != "checksum"
    }  # dithc adds a checksum to the files that it writes
    if not any(config.get(name) for name in SECTIONS):
        config = {**read(DEMO).values, **config}
    # Snakemake removes its own keys, such as templates, which run code. Include them, so that they are rejected.
    removed = {
        key: value for text in texts for key, value in text.values.items() if key not in ExperimentConfig.model_fields
    }
    return _checked({**config, **removed}, origin="the configuration", texts=texts)


def load_machine(folder: Path) -> tuple[MachineConfig, dict[str, Any]]:
    """Return the section `machine` of a Snakemake profile, and the profile; UserError if it is missing or invalid."""
    path = folder / "config.yaml"
    content = read(path).values
    settings = content.get("config") or []
    if not isinstance(settings, Mapping):
        arguments = settings if isinstance(settings, list) else [settings]
        settings = parse_arguments(str(path), [str(argument) for argument in arguments]).values
    return load({"machine": settings.get("machine", {})}).machine, content
