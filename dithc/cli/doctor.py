"""`dithc doctor`: what this machine is, what is off and why, what will hurt."""

import argparse
from pathlib import Path

SUMMARY = "Look at the machine and the installation; exit status 1 when something will hurt."
EXAMPLE = "dithc doctor --json doctor.json"

COLOURS = {"ok": "\033[32m", "warn": "\033[33m", "bad": "\033[31m"}
PLAIN = "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the folder to look at, the JSON file, and the file for a description."""
    parser.add_argument("--folder", type=Path, default=Path(), help="where results will go (default: here)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings with all their facts")
    parser.add_argument(
        "--describe",
        type=Path,
        metavar="FILE",
        help="only write this machine as YAML, which DITHC_MACHINE makes stand in for another machine",
    )


def run(args: argparse.Namespace) -> int:
    """Prints a line or a few per finding, worst news with its remedy."""
    import json
    import sys
    from dataclasses import asdict

    from dithc.doctor import collect, worst
    from dithc.hardware import discover
    from dithc.runs import atomic_write

    if args.describe:
        discover(described=False).write(args.describe)
        print(f"this machine: {args.describe}")
        return 0
    findings = collect(args.folder)
    colour = sys.stdout.isatty()
    for finding in findings:
        mark = f"{finding.level:<5}"
        first, *rest = finding.text.splitlines()
        print(f"{f'{COLOURS[finding.level]}{mark}{PLAIN}' if colour else mark} {finding.topic}: {first}")
        for line in [*rest, *([f"remedy: {finding.remedy}"] if finding.remedy else [])]:
            print(f"      {line}")
    verdict = worst(findings)
    bad = ", ".join(finding.topic for finding in findings if finding.level == "bad")
    print(f"exit status 1: {bad} will hurt" if bad else "nothing here will stop work")
    if args.json:
        content = {"verdict": verdict, "findings": [asdict(finding) for finding in findings]}
        atomic_write(args.json, json.dumps(content, indent=1) + "\n")
    return 1 if verdict == "bad" else 0
