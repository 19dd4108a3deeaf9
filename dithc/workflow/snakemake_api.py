"""Access to Snakemake: profile and command-line configuration, and forced outputs.

Snakemake's `--config` replaces all `config` of a profile, so one override would drop launcher, ranks and cores. This module
merges them: profiles in order, then the command line.
"""

import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

ConfigArguments = tuple[str, list[str]]  # origin, and arguments of the form `key=value`


def config_arguments(engine: Any, argv: Sequence[str] | None = None) -> list[ConfigArguments]:
    """Return the configuration arguments of every profile and of the command line (default: of this process).

    The driver passes them to its jobs, which have no profile, so all jobs share one configuration.
    """
    from snakemake.cli import get_argument_parser, get_profile_dir
    from snakemake.profiles import ProfileConfigFileParser

    settings = engine.config_settings
    if not engine.is_main_process:
        return [("the driver", list(settings.config_args or []))]
    args, _ = get_argument_parser().parse_known_args(list(sys.argv[1:] if argv is None else argv))
    sources: list[ConfigArguments] = []
    for name in args.profile or []:
        profile = None if name == "none" else get_profile_dir(name)
        if profile is not None:
            with Path(profile[1]).open() as file:
                config = ProfileConfigFileParser().parse(file).get("config", [])
            sources.append((str(profile[1]), [config] if isinstance(config, str) else list(map(str, config))))
    sources.append(("the command line", list(args.config or [])))
    settings.config_args = [argument for _, arguments in sources for argument in arguments]
    return sources


def add_outputs(plan: Any, outputs: Set[str]) -> None:
    """Add outputs to Snakemake's plan (`dag`) without triggering other jobs; running jobs wait for them.

    Forced or outdated outputs would rerun everything downstream. So they are added once each job has its own reasons. Unknown
    paths are ignored.
    """
    decide = plan.update_needrun

    async def decide_and_add(*args: Any, **options: Any) -> None:
        await decide(*args, **options)
        for job in plan.jobs:
            if not outputs.isdisjoint(map(str, job.output)) and not plan.finished(job):
                plan._needrun.add(job)
                plan.reason(job).forced = True
        for job in plan._needrun:
            plan._n_until_ready[job] = sum(1 for predecessor in plan.dependencies[job] if predecessor in plan._needrun)
        plan._len = len(plan._finished | plan._needrun)

    plan.update_needrun = decide_and_add
