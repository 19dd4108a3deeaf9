"""What of Snakemake itself is asked: what profiles and command line say, and that a result is made again for which nothing runs.

To Snakemake, `--config` on the command line is given in the place of all that a profile has under `config`, so that one setting
of the machine would take launcher, ranks and cores away. Here all are kept, from below: profiles in their order, the command
line.
"""

import sys
from collections.abc import Sequence, Set
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


def also_make(plan: Any, outputs: Set[str]) -> None:
    """Has Snakemake make these outputs too, and no other job for their sake; jobs that run anyway wait for them.

    What is forced, or older than an input, makes all that follows from it run as well. So these are added when it is decided what
    runs, of which each other job has its own reasons.

    Args:
        plan: Snakemake's `dag`.
        outputs: paths; those that the plan does not have are left alone.
    """
    decide = plan.update_needrun

    async def decide_and_add(*args: Any, **known: Any) -> None:
        await decide(*args, **known)
        for job in plan.jobs:
            if not outputs.isdisjoint(map(str, job.output)) and not plan.finished(job):
                plan._needrun.add(job)
                plan.reason(job).forced = True
        for job in plan._needrun:
            plan._n_until_ready[job] = sum(1 for one in plan.dependencies[job] if one in plan._needrun)
        plan._len = len(plan._finished | plan._needrun)

    plan.update_needrun = decide_and_add
