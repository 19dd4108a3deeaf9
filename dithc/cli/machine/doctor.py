"""`dithc doctor`: checks the machine and the installation, and lists problems with fixes."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dithc.engine.doctor import CheckResult

SUMMARY = "Check the machine and the installation. Exit status 1 if a problem prevents work."
EXAMPLE = "dithc doctor\ndithc doctor --write-profile cluster && dithc doctor --profile cluster"

COLORS = {"ok": "\033[32m", "warning": "\033[33m", "error": "\033[31m"}
PLAIN = "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results-folder", type=Path, default=Path(), help="folder for results (default: working folder)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings with all their properties")
    describe = "only write this machine as YAML, which DITHC_MACHINE_FILE makes stand in for another machine"
    parser.add_argument("--write-machine", type=Path, metavar="FILE", help=describe)
    parser.add_argument("--verbose", action="store_true", help="also show the kernel of each operator and its reason")
    cluster = parser.add_argument_group("on the login node of a Slurm cluster")
    cluster.add_argument("--write-profile", metavar="NAME", help="write profiles/NAME for this cluster, and a link")
    cluster.add_argument("--partition", metavar="P", help="partition of the profile (default: Slurm's default)")
    cluster.add_argument("--account", metavar="A", help="account of the profile (default: yours)")
    cluster.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes per training run (default 1)")
    cluster.add_argument("--profile", metavar="NAME", help="test a profile: a one-second job on every type of node")
    parser.add_argument("--probe-node", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--token", type=Path, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    import logging
    import os

    from dithc.core.artifacts import outputs
    from dithc.core.logging import setup_logging
    from dithc.engine.doctor import check_profile, probe_node, run_checks
    from dithc.engine.hardware import description, discover_machine

    if args.write_machine:
        outputs.write(args.write_machine, description.to_yaml(discover_machine(described=False)))
        print(f"this machine: {args.write_machine}")
        return 0
    if args.probe_node:
        probe_node(args.probe_node, token=args.token)
        return 0
    if args.write_profile:
        return _write(args)
    if args.profile:
        from dithc.engine.scheduler import slurm_site

        return _print(check_profile(args.profile, slurm_site.probe_site()), args)
    if "DITHC_LOG_LEVEL" not in os.environ:
        setup_logging(level=logging.WARNING)  # the verdict comes first; the findings contain the INFO messages of dithc
    return _print(run_checks(args.results_folder), args)


def _write(args: argparse.Namespace) -> int:
    from dithc.core.logging import user_error
    from dithc.engine.doctor import write_profile
    from dithc.engine.scheduler import slurm_site

    site = slurm_site.probe_site()
    if site is None:
        raise user_error(
            "dithc doctor --write-profile",
            got="no working Slurm commands (sbatch, scontrol)",
            expected="the login node of a Slurm cluster",
            fix="run it on the login node; or use profiles/generic for other schedulers, profiles/local for one "
            "machine",
        )
    written = write_profile(args.write_profile, site, partition=args.partition, nodes=args.nodes, account=args.account)
    for note in written.notes:
        print(note)
    name = written.link or written.path.parent
    print(f"wrote {written.path}; try it:  dithc doctor --profile {name}\nuse it:  snakemake --profile {name}")
    return 0


def _print(findings: "list[CheckResult]", args: argparse.Namespace) -> int:
    import json
    import sys
    from dataclasses import asdict

    from dithc.core.artifacts import outputs
    from dithc.core.logging import escaping
    from dithc.engine.doctor import worst_level

    verdict = worst_level(findings)
    print(_verdict(findings))
    for finding in sorted(findings, key=lambda one: ("error", "warning", "ok").index(one.level)):
        mark = f"{finding.level:<7}"
        first, *details = finding.text.splitlines()
        sys.stdout.write(escaping.Coded(f"{COLORS[finding.level]}{mark}{PLAIN}") if sys.stdout.isatty() else mark)
        print(f" {finding.topic}: {first}")
        details += finding.details.splitlines() if args.verbose else []
        for line in [*details, *([f"fix: {finding.fix}"] if finding.fix else [])]:
            print(f"        {line}")
    if args.json:
        content = {"verdict": verdict, "findings": [asdict(finding) for finding in findings]}
        outputs.write(args.json, json.dumps(content, indent=1) + "\n")
    return 1 if verdict == "error" else 0


def _verdict(findings: "list[CheckResult]") -> str:
    failed, warned, well = (
        [one.topic for one in findings if one.level == level] for level in ("error", "warning", "ok")
    )
    count = f"{len(warned)} warning{'s' if len(warned) != 1 else ''}" if warned else "no warnings"
    also = f"{count}: {', '.join(dict.fromkeys(warned))}" if warned else count
    if failed:
        return f"not ready (exit status 1): {', '.join(dict.fromkeys(failed))} must be fixed; {also}"
    return f"ready: {len(well)} of {len(findings)} findings are ok, no problem prevents work; {also}"
