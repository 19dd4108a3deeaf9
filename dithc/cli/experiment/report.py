"""`dithc report`: one HTML page with datasets, training runs and scores of an experiment."""

import argparse
from pathlib import Path

SUMMARY = "Writes the report of an experiment: one self-contained HTML file, its numbers as JSON, its figures."
EXAMPLE = (
    "dithc report --config config/experiments/demo.yaml --manifests results/demo/*/*/manifest.json "
    "results/demo/runs/*/step_*.json --out results/demo/report.html"
)
BENCHES = {"bench": "step", **{kind: kind for kind in ("strategies", "stepwise", "automem")}}
"""Kinds of measurement by option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--manifests", type=Path, nargs="*", default=[], metavar="M", help="manifests of all stages")
    for option, kind in BENCHES.items():
        text = f"output of `dithc bench {kind} --json`"
        parser.add_argument(f"--{option}", type=Path, nargs="?", metavar="JSON", help=text)
    text = "output of `dithc bench scaling --json` and `dithc simulate --json`"
    parser.add_argument("--scaling", type=Path, nargs="*", default=[], metavar="JSON", help=text)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="page to write")


def run(args: argparse.Namespace) -> int:
    """Write the page. Print the scores of each dataset."""
    from dithc.config import load
    from dithc.engine.hardware import discover_machine
    from dithc.report import write_report

    records = write_report(
        load(args.config),
        args.manifests,
        out=args.out,
        benches={kind: getattr(args, option) for option, kind in BENCHES.items()},
        scaling=args.scaling,
        machine=discover_machine().describe().splitlines(),
        config=args.config,
    )
    for dataset in records.datasets:
        for item in records.evaluations_of(dataset.name):
            if item.score:
                comparable = "" if item.score.comparable_to_published else "  NOT COMPARABLE with published FID"
                floor = "none" if item.score.floor is None else f"{item.score.floor:.4g}"
                kid = f"KID {item.score.kid:<10.4g} " if records.measure == "KID" else ""
                fid = f"FID {item.score.fid:<10.4g} floor {floor}"
                print(f"{dataset.title:<28} {item.label:<20} {kid}{fid}{comparable}")
    print(f"report: {args.out.resolve()}")
    return 0
