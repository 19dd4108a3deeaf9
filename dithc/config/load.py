"""Reads a configuration from files or mappings, with errors that name the key."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from dithc.config.experiment import Experiment
from dithc.log import problem
from dithc.sealed import has_seal, unseal

T = TypeVar("T")
SECTIONS = ("datasets", "codecs", "runs", "extractors", "evaluations")  # without one of them there is nothing to do
DEMO = Path("config/experiments/demo.yaml")


def load(source: Path | Mapping[str, Any]) -> Experiment:
    """The experiment described by a YAML (or JSON) file or by a mapping; what it does not say has its default.

    Raises:
        UserError: a key is unknown, a value is wrong, or a name refers to nothing; each fault is named with its key.
    """
    content, origin = (_read(source), str(source)) if isinstance(source, Path) else (dict(source), "the configuration")
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'experiment'}: {_said(fault)}" for fault in error.errors()]
        raise problem(
            f"{origin} has {len(faults)} fault{'s' * (len(faults) > 1)}",
            got="".join(f"\n    {fault}" for fault in faults),
            expected="the fields documented in workflow/schemas/config.schema.json",
            remedy="correct the keys named above",
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
            remedy="correct the name, or add it to the configuration",
        )
    return section[name]


def _said(fault: Any) -> str:
    text = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        return "unknown key"
    return (
        text
        if isinstance(fault["input"], Mapping) or fault["type"] == "value_error"
        else f"{text}, got {fault['input']!r}"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        content = unseal(text) if has_seal(text) else yaml.safe_load(text)
    except FileNotFoundError:
        raise problem(
            f"configuration file {path} does not exist",
            got="no such file",
            expected="a YAML file such as config/experiments/demo.yaml",
            remedy="check the path; it is relative to the working folder",
        ) from None
    except yaml.YAMLError as error:
        raise problem(
            f"configuration file {path} is no YAML", got=error, expected="YAML", remedy="correct that line"
        ) from None
    except ValueError as error:
        raise problem(
            f"configuration file {path} is not what was written",
            got=error,
            expected="the bytes under its seal",
            remedy="delete it and run the workflow again, which writes it anew; settings are changed in your own files",
        ) from None
    if not isinstance(content, dict):
        raise problem(
            f"configuration file {path} is empty or no mapping",
            got=type(content).__name__,
            expected="keys such as `datasets:` and `runs:`",
            remedy="start from config/experiments/demo.yaml",
        )
    return content


def read_profile(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A profile of the workflow engine, and the section `machine` of the configuration that it sets.

    Raises:
        UserError: the profile is missing, or is no YAML.
    """
    content = _read(folder / "config.yaml")
    entries = content.get("config") or []
    machine: dict[str, Any] = {}
    for entry in [entries] if isinstance(entries, str) else entries:
        key, _, text = str(entry).partition("=")
        if key.strip() == "machine":
            machine = yaml.safe_load(text)
    return content, machine


def experiment_of(config: Mapping[str, Any] | Sequence[Path]) -> Experiment:
    """The experiment of a workflow engine's merged configuration; the demo, with what was changed, where it defines nothing.

    Args:
        config: the configuration, or files of which each is laid over those before it, as the engine does.

    Raises:
        UserError: as `load`.
    """
    if not isinstance(config, Mapping):
        merged: dict[str, Any] = {}
        for path in config:
            _lay_over(merged, _read(path))
        config = merged
    config = {
        key: value for key, value in config.items() if key != "seal"
    }  # of a resolved configuration that dithc wrote
    plain = Experiment().model_dump(mode="json")
    if any(config.get(name) for name in SECTIONS):
        return load(config)
    changed = {key: value for key, value in config.items() if key not in plain or value != plain[key]}
    return load({**_read(DEMO), **changed})


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = value
