"""`dithc report`: one HTML page that says what was trained on what, how it went and how good it is."""

import argparse
from pathlib import Path

from dithc.log import logger

SUMMARY = (
    "Writes the report of an experiment: one HTML file that opens without network, its numbers as JSON, its figures."
)
EXAMPLE = (
    "dithc report --config config/experiments/demo.yaml --manifests results/demo/*/*/manifest.json "
    "results/demo/runs/*/step_*.json --out results/demo/report.html"
)
REFERENCE = Path("config/paper/reference.yaml")
ROOT = Path(__file__).parents[3]  # of a checkout, where the package is installed in place
log = logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument(
        "--manifests",
        type=Path,
        nargs="*",
        default=[],
        metavar="M",
        help="manifests of all stages; none for an empty page",
    )
    parser.add_argument("--bench", type=Path, nargs="?", metavar="JSON", help="what `dithc bench step --json` wrote")
    parser.add_argument(
        "--strategies", type=Path, nargs="?", metavar="JSON", help="what `dithc bench strategies --json` wrote"
    )
    parser.add_argument(
        "--scaling",
        type=Path,
        nargs="*",
        default=[],
        metavar="JSON",
        help="what `dithc bench scaling --json` and `dithc simulate --json` wrote",
    )
    parser.add_argument(
        "--stepwise", type=Path, nargs="?", metavar="JSON", help="what `dithc bench stepwise --json` wrote"
    )
    parser.add_argument(
        "--automem", type=Path, nargs="?", metavar="JSON", help="what `dithc bench automem --json` wrote"
    )
    parser.add_argument(
        "--sampling", type=Path, nargs="?", metavar="JSON", help="what `dithc bench sampling --json` wrote"
    )
    parser.add_argument("--reference", type=Path, help=f"the paper's numbers; {REFERENCE} if not given")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.html", help="page to write")


def run(args: argparse.Namespace) -> int:
    """Writes the page; prints what it says of each data set."""
    from dithc.config import load
    from dithc.hardware import discover
    from dithc.report import write_report

    facts = write_report(
        load(args.config),
        args.manifests,
        out=args.out,
        benches={
            "step": args.bench,
            "strategies": args.strategies,
            "stepwise": args.stepwise,
            "automem": args.automem,
            "sampling": args.sampling,
        },
        scaling=args.scaling,
        reference=args.reference or _reference(),
        machine=discover().describe().splitlines(),
        config=args.config,
    )
    for dataset in facts.datasets:
        for item in facts.evaluations_of(dataset.name):
            if item.score:
                comparable = "" if item.score.comparable else "  NOT COMPARABLE with published FID"
                floor = "none" if item.score.floor is None else f"{item.score.floor:.4g}"
                kid = f"KID {item.score.kid:<10.4g} " if facts.measure == "KID" else ""
                fid = f"FID {item.score.fid:<10.4g} floor {floor}"
                print(f"{dataset.title:<28} {item.label:<20} {kid}{fid}{comparable}")
    print(f"report: {args.out.resolve()}")
    return 0


def _reference() -> Path | None:
    """The file with the paper's numbers in the working folder or in the checkout; None, said aloud, where it is in neither."""
    for folder in (Path(), ROOT):
        if (folder / REFERENCE).is_file():
            return folder / REFERENCE
    log.warning(f"{REFERENCE} is neither here nor in {ROOT}: the report has no numbers of the paper")
    return None
