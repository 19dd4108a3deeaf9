"""Common form of the measurements of `dithc bench`, and arguments used by several of them."""

import argparse
import ast
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin

from dithc.core.processes import STOPPED

STOPPED_SUFFIX, PARTIAL_SUFFIX = ".stopped.json", ".partial.jsonl"
INTERRUPTED = 130  # exit status after Ctrl-C
Settings = TypeVar("Settings")
Parser = argparse.ArgumentParser | argparse._ArgumentGroup
OVERRIDE = "change a field of the preset, such as hidden_size=768, depth=2 or num_heads=12; may be repeated"


@dataclass(frozen=True)
class Benchmark:
    """A measurement: help, example, arguments, and the function that runs it and returns the exit status."""

    help: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measured values, machine and versions")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declare `--threads` and `--json`."""
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    add_json(parser)


def add_option(parser: Parser, option: str, default: float | str | Path, text: str, **more: Any) -> None:
    """Declare an option of the type of its default, which the help contains."""
    label = f"{default:g}" if isinstance(default, int | float) else default
    parser.add_argument(option, **{"type": type(default), **more}, default=default, help=f"{text} (default {label})")


def add_choice(parser: argparse.ArgumentParser, option: str, choices: Sequence[str], text: str = "") -> None:
    """Declare an option with one of several words, by default the first."""
    parser.add_argument(option, choices=choices, default=choices[0], help=f"{text} (default {choices[0]})".strip())


def add_dtype(parser: argparse.ArgumentParser) -> None:
    add_choice(parser, "--dtype", ("fp32", "bf16"), "bf16: autocast, weights stay fp32")


def add_dtypes(parser: argparse.ArgumentParser) -> None:
    """Declare `--dtype` of a command that takes one type or both, as the setting `dtypes`."""
    choices = "{fp32,bf16,both}"
    parser.add_argument("--dtype", dest="dtypes", type=_dtypes, metavar=choices, help="data type (default both)")


def _dtypes(text: str) -> tuple[str, ...]:
    if text not in ("fp32", "bf16", "both"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected fp32, bf16 or both")
    return ("fp32", "bf16") if text == "both" else (text,)


def add_model(parser: argparse.ArgumentParser, *, default: str = "DiT-S/2", batch: int = 8) -> None:
    """Declare `--model`, `--override` and `--batch`, which is over all ranks."""
    add_option(parser, "--model", default, "preset, with or without DiT-", type=preset)
    add_override(parser)
    add_option(parser, "--batch", batch, "images per step over all ranks")


def add_override(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)


def add_models(parser: argparse.ArgumentParser, default: str) -> None:
    """Declare `--models`, `--override` and `--dtype` of training runs of several models."""
    add_option(parser, "--models", default, "presets, with or without DiT-", type=presets)
    add_override(parser)
    add_dtype(parser)


def add_steps(parser: argparse.ArgumentParser, *, rounds: int, unit: str, warmup: int = 2) -> None:
    """Declare `--rounds`, `--warmup` and `--steps` of interleaved training runs, and `--json`."""
    add_option(parser, "--rounds", rounds, f"interleaved runs of each {unit}")
    add_option(parser, "--warmup", warmup, "untimed steps of each run")
    add_option(parser, "--steps", 3, "timed steps of each run")
    add_json(parser)


def add_rounds(parser: argparse.ArgumentParser) -> None:
    """Declare `--warmup`, `--rounds`, `--seed` and the options of `add_threads`, of steps in one process."""
    add_option(parser, "--warmup", 2, "untimed steps of each variant")
    add_option(parser, "--rounds", 7, "timed rounds")
    add_option(parser, "--seed", 0, "seed of weights and batch")
    add_threads(parser)


def runner(
    measure: str, rows: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] = lambda _: ()
) -> Callable[[argparse.Namespace], int]:
    """Return the function that runs a measurement and returns the exit status.

    Args:
        measure: PACKAGE:FUNCTION in `dithc.bench`, imported when it runs; the function has one argument `settings`.
        rows: the rows of the result with a status.
    """

    def run(args: argparse.Namespace) -> int:
        function = pkgutil.resolve_name(f"dithc.bench.{measure}")
        result = function(settings_of(function.__annotations__["settings"], args))
        return emit(result, args.json, rows(result))

    return run


def settings_of(kind: type[Settings], args: argparse.Namespace, **given: Any) -> Settings:
    """Build a settings dataclass from the arguments with the names of its fields.

    Commas split the text of a tuple. None keeps the default of the field. `given` replaces arguments.
    """
    arguments = vars(args) | {"overrides": dict(getattr(args, "override", ()))} | given
    settings: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = arguments.get(field.name)
        if value is not None:
            splits = isinstance(value, str) and get_origin(field.type) is tuple
            settings[field.name] = tuple(value.split(",")) if splits else value
    return kind(**settings)


def preset(name: str) -> str:
    """Return the full name of a preset, with the prefix `DiT-`."""
    return name if "DiT-" in name else f"DiT-{name}"


def presets(names: str) -> tuple[str, ...]:
    """Return the full names of presets, separated by commas."""
    return tuple(map(preset, names.split(",")))


def numbers(text: str) -> tuple[int, ...]:
    """Parse integers, separated by commas."""
    return tuple(map(int, text.split(",")))


def override(text: str) -> tuple[str, Any]:
    """Parse FIELD=VALUE with a number, tuple, True or False."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIELD=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(f"{text!r}: the value is not a number, tuple, True or False") from None


def emit(result: Mapping[str, Any], path: Path | None, rows: Iterable[Mapping[str, Any]]) -> int:
    """Print a result as a table, write its JSON, and return the exit status: 1 if there are rows and none is `ok`.

    A stopped measurement writes its result to a separate file next to its units, from which the next execution resumes.
    """
    from dithc.bench import summary
    from dithc.bench.resume import current_session
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed

    measurement, signal = summary(result), current_session().stopped_by
    print(measurement.text())
    content = dict(result) | measurement.to_content()
    content |= {"sessions": current_session().number} if current_session().number > 1 else {}
    content |= {"stopped_by": signal} if signal else {}
    if path is not None:
        part = path.with_suffix(STOPPED_SUFFIX)
        outputs.write(part if signal else path, dump_checksummed(content, allow_nan=True))
        if signal:
            print(f"stopped by {signal}: the values measured so far are in {part}; rerun the same command to resume")
        else:
            outputs.OutputFolder.around(part).delete()
    if signal:
        return STOPPED if path is not None and signal != "Ctrl-C" else INTERRUPTED
    states = [row["status"] for row in rows]
    return 0 if not states or "ok" in states else 1
