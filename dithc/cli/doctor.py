"""`dithc doctor`: what this machine is, what is off and why, what will hurt."""

import argparse
from pathlib import Path

SUMMARY = "Look at the machine and the installation; exit status 1 when something will hurt."
EXAMPLE = "dithc doctor --json doctor.json"

COLOURS = {"ok": "\033[32m", "warn": "\033[33m", "bad": "\033[31m"}
PLAIN = "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the folder to look at and the JSON file."""
    parser.add_argument("--folder", type=Path, default=Path(), help="where results will go (default: here)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings with all their facts")


def run(args: argparse.Namespace) -> int:
    """Prints a line or a few per finding, worst news with its remedy."""
    import json
    import sys
    from dataclasses import asdict

    from dithc.doctor import collect, worst
    from dithc.runs import atomic_write

    findings = collect(args.folder)
    colour = sys.stdout.isatty()
    for finding in findings:
        mark = f"{finding.level:<5}"
        first, *rest = finding.text.splitlines()
        print(f"{f'{COLOURS[finding.level]}{mark}{PLAIN}' if colour else mark} {finding.topic}: {first}")
        for line in [*rest, *([f"remedy: {finding.remedy}"] if finding.remedy else [])]:
            print(f"      {line}")
    verdict = worst(findings)
    if args.json:
        content = {"verdict": verdict, "findings": [asdict(finding) for finding in findings]}
        atomic_write(args.json, json.dumps(content, indent=1) + "\n")
    return 1 if verdict == "bad" else 0
