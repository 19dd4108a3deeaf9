"""Common form of the measurements of `dithc bench`, and arguments used by several of them."""

import argparse
import ast
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin

STOPPED_SUFFIX, KEPT_SUFFIX = ".stopped.json", ".kept.jsonl"
STOPPED, INTERRUPTED = 75, 130  # exit statuses: stopped and saved, must be rerun; Ctrl-C
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
    """Declare `--json`."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measured values, machine and versions")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declare `--threads` and `--json`."""
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    add_json(parser)


def add_number(parser: Parser, option: str, default: float, text: str, **more: Any) -> None:
    """Declare an option with a number of the type of its default."""
    text = f"{text} (default {default:g})"
    parser.add_argument(option, type=type(default), default=default, help=text, **more)


def add_choice(parser: argparse.ArgumentParser, option: str, choices: Sequence[str], text: str = "") -> None:
    """Declare an option with one of several words, by default the first."""
    parser.add_argument(option, choices=choices, default=choices[0], help=f"{text} (default {choices[0]})".strip())


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Declare `--dtype`."""
    add_choice(parser, "--dtype", ("fp32", "bf16"), "bf16: autocast, weights stay fp32")


def add_dtypes(parser: argparse.ArgumentParser) -> None:
    """Declare `--dtype` of a command that takes one type or both, as the setting `dtypes`."""
    known = "{fp32,bf16,both}"
    parser.add_argument("--dtype", dest="dtypes", type=_dtypes, metavar=known, help="data type (default both)")


def _dtypes(text: str) -> tuple[str, ...]:
    if text not in ("fp32", "bf16", "both"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected fp32, bf16 or both")
    return ("fp32", "bf16") if text == "both" else (text,)


def add_model(parser: argparse.ArgumentParser, *, default: str = "DiT-S/2", batch: int = 8) -> None:
    """Declare `--model`, `--override` and `--batch`, which is over all ranks."""
    text = f"preset, with or without DiT- (default {default})"
    parser.add_argument("--model", type=preset, default=default, help=text)
    add_override(parser)
    add_number(parser, "--batch", batch, "images per step over all ranks")


def add_override(parser: argparse.ArgumentParser) -> None:
    """Declare `--override`."""
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)


def add_models(parser: argparse.ArgumentParser, default: str) -> None:
    """Declare `--models`, `--override` and `--dtype` of training runs of several models."""
    text = f"presets, with or without DiT- (default {default})"
    parser.add_argument("--models", type=presets, default=default, help=text)
    add_override(parser)
    add_dtype(parser)


def add_steps(parser: argparse.ArgumentParser, *, rounds: int, of: str, warmup: int = 2) -> None:
    """Declare `--rounds`, `--warmup` and `--steps` of interleaved training runs, and `--json`."""
    add_number(parser, "--rounds", rounds, f"interleaved runs of each {of}")
    add_number(parser, "--warmup", warmup, "untimed steps of each run")
    add_number(parser, "--steps", 3, "timed steps of each run")
    add_json(parser)


def add_repeats(parser: argparse.ArgumentParser) -> None:
    """Declare `--warmup`, `--repeats`, `--seed` and the options of `add_threads`, of steps in one process."""
    add_number(parser, "--warmup", 2, "untimed steps of each variant")
    add_number(parser, "--repeats", 7, "timed rounds")
    add_number(parser, "--seed", 0, "seed of weights and batch")
    add_threads(parser)


def running(
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
        return tell(result, args.json, rows(result))

    return run


def settings_of(kind: type[Settings], args: argparse.Namespace, **given: Any) -> Settings:
    """Build a settings dataclass from the arguments with the names of its fields.

    Commas split the text of a tuple. None keeps the default of the field. `given` replaces arguments.
    """
    found = vars(args) | {"overrides": dict(getattr(args, "override", ()))} | given
    kept: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]
        value = found.get(one.name)
        if value is not None:
            splits = isinstance(value, str) and get_origin(one.type) is tuple
            kept[one.name] = tuple(value.split(",")) if splits else value
    return kind(**kept)


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


def tell(result: Mapping[str, Any], path: Path | None, rows: Iterable[Mapping[str, Any]]) -> int:
    """Print a result as a table and write its JSON.

    A stopped measurement writes its result to a separate file next to its units, from which the next execution resumes.

    Returns:
        Exit status: 1 if there are rows and none is `ok`.
    """
    from dithc.bench import summary
    from dithc.bench.resume import current_session
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed

    found, by = summary(result), current_session().stopped_by
    print(found.text())
    told = dict(result) | found.to_content()
    told |= {"sittings": current_session().number} if current_session().number > 1 else {}
    told |= {"stopped_by": by} if by else {}
    if path is not None:
        part = path.with_suffix(STOPPED_SUFFIX)
        outputs.write(part if by else path, dump_checksummed(told, allow_nan=True))
        if by:
            print(f"stopped by {by}: the values measured so far are in {part}; rerun the same command to resume")
        else:
            outputs.OutputFolder.around(part).delete()
    if by:
        return STOPPED if path is not None and by != "Ctrl-C" else INTERRUPTED
    states = [row["status"] for row in rows]
    return 0 if not states or "ok" in states else 1
