"""Common form of the measurements of `dithc bench`, and arguments used by several of them."""

import argparse
import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin

STOPPED_SUFFIX, KEPT_SUFFIX = ".stopped.json", ".kept.jsonl"
STOPPED, INTERRUPTED = 75, 130  # exit statuses: stopped and saved, must be rerun; Ctrl-C
Settings = TypeVar("Settings")
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
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all measured values, with machine and versions"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declare `--threads` and `--json`."""
    parser.add_argument("--threads", type=int, help="compute threads (default: the core plan's)")
    add_json(parser)


def add_model(parser: argparse.ArgumentParser, *, default: str = "DiT-S/2", batch: int = 8) -> None:
    """Declare `--model`, `--override`, `--batch` (over all ranks) and `--dtype` of a training run."""
    parser.add_argument("--model", default=default, help=f"preset, with or without DiT- (default {default})")
    add_override(parser)
    parser.add_argument("--batch", type=int, default=batch, help=f"images per step over all ranks (default {batch})")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default fp32)")


def add_override(parser: argparse.ArgumentParser) -> None:
    """Declare `--override`."""
    parser.add_argument("--override", action="append", default=[], type=override, metavar="FIELD=VALUE", help=OVERRIDE)


def add_steps(parser: argparse.ArgumentParser, *, rounds: int, of: str, warmup: int = 2) -> None:
    """Declare `--rounds`, `--warmup` and `--steps` of interleaved training runs."""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved runs of each {of} (default {rounds})")
    parser.add_argument("--warmup", type=int, default=warmup, help=f"untimed steps of each run (default {warmup})")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each run (default 3)")


def settings_of(kind: type[Settings], args: argparse.Namespace, **given: Any) -> Settings:
    """Build a settings dataclass from the arguments with the names of its fields.

    Commas split the text of a tuple. None keeps the default of the field.

    Args:
        kind: dataclass to build.
        args: parsed arguments.
        **given: values that replace arguments.
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
