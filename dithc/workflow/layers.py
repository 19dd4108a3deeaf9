"""What of Snakemake's own is asked: what profiles and the command line say, and its mark for inputs whose time tells nothing.

To Snakemake, `--config` on the command line is given in the place of all that a profile has under `config`, so that one setting
of the machine would take launcher, ranks and cores away. Here all are kept, from below: profiles in their order, the command
line.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Words = tuple[str, list[str]]  # of the form `key=value`, by their origin


def words_of(engine: Any, argv: Sequence[str] | None = None) -> list[Words]:
    """Words of every profile and of the command line; of a job, which knows no profile, those that the driver handed to it.

    They become what the driver hands to its jobs, so that every job has the same configuration.

    Args:
        engine: Snakemake's `workflow`.
        argv: its command line, without its name; that of this process where it is not given.
    """
    settings = engine.config_settings
    if not engine.is_main_process:
        return [("the driver", list(settings.config_args or []))]
    found = _said(sys.argv[1:] if argv is None else argv)
    settings.config_args = [word for _, words in found for word in words]
    return found


def _said(argv: Sequence[str]) -> list[Words]:
    from snakemake.cli import get_argument_parser, get_profile_dir
    from snakemake.profiles import ProfileConfigFileParser

    args, _ = get_argument_parser().parse_known_args(list(argv))
    found = []
    for name in args.profile or []:
        place = None if name == "none" else get_profile_dir(name)
        if place is not None:
            with Path(place[1]).open() as file:
                words = ProfileConfigFileParser().parse(file).get("config", [])
            found.append((str(place[1]), [str(word) for word in ([words] if isinstance(words, str) else words)]))
    return [*found, ("the command line", list(args.config or []))]


def ancient(path: str) -> Any:
    """A path whose time tells Snakemake nothing: who has it as input waits for it, but does not run for it."""
    from snakemake.io import ancient

    return ancient(path)
