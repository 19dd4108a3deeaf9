"""`dithc reproduce`: a cell of a table or figure of the paper, the document of its cells, or the page of all documents."""

import argparse
from pathlib import Path
from typing import Any

from dithc.core.logging import user_error

SUMMARY = "Reproduces tables and figures of the paper: a cell, a document of its cells, or a page of all documents."
EXAMPLE = (
    "dithc reproduce fig10 --config config/experiments/demo.yaml --dry-run\n"
    "dithc reproduce fig10 --config config/experiments/demo.yaml --cell simulated-weak "
    "--out results/demo/paper/cells/fig10/simulated-weak.json"
)
PAGE = "page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET|page", help="table1 ... table4, fig7 ... fig11, sec56; or page")
    parser.add_argument("--config", type=Path, help="configuration file of the experiment")
    parser.add_argument("--cell", metavar="NAME", help="run only this cell")
    parser.add_argument("--dry-run", action="store_true", help="list the cells with their predicted seconds and exit")
    parser.add_argument("--cores", type=int, help="cores of the node to plan for (default: this machine's)")
    parser.add_argument("--memory-gib", type=float, help="memory of that node (default: this machine's)")
    parser.add_argument("--cells", type=Path, metavar="DIR", help="folder of the target's cells")
    parser.add_argument("--scores", type=Path, nargs="*", default=[], metavar="M", help="manifests of `dithc fid`")
    parser.add_argument("--mosaics", type=Path, nargs="*", default=[], metavar="PNG", help="mosaics of the report")
    parser.add_argument("--command", default="", metavar="LINE", help="command that reproduces this target")
    parser.add_argument("--results", type=Path, nargs="*", default=[], metavar="JSON", help="documents, for the page")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write")


def run(args: argparse.Namespace) -> int:
    """Execute the requested part. The status of a cell is 0 even if it runs out of memory, which is a result."""
    from dithc.core.reproduction import TARGETS

    if args.target != PAGE and args.target not in TARGETS:
        expected = f"one of {', '.join(TARGETS)}, or page"
        fix = "correct the name; the target `paper` of the workflow builds all"
        raise user_error("dithc reproduce TARGET", got=args.target, expected=expected, fix=fix)
    if args.out is None and not args.dry_run:
        raise user_error("dithc reproduce --out", got="none", expected="the file to write", fix="add --out FILE")
    if args.out is not None:
        from dithc.core.artifacts import outputs

        outputs.check_file(args.out)
    if args.target == PAGE:
        return _page(args)
    if args.config is None:
        expected = "a configuration file"
        raise user_error("dithc reproduce --config", got="none", expected=expected, fix="add --config FILE")
    from dithc.config import load
    from dithc.workflow import reproduction

    experiment = load(args.config)
    node = reproduction.resolve_node(experiment, cores=args.cores, memory_gib=args.memory_gib)
    jobs = reproduction.plan_cells(experiment, node)
    if args.dry_run:
        print(reproduction.format_cells(jobs, args.target, node))
        return 0
    if args.cell is not None:
        from dithc.cli.experiment.reproduce_cell import run_cell

        return run_cell(reproduction.find_cell(jobs, args.target, args.cell), args.out)
    return _document(args, experiment, jobs)


def _document(args: argparse.Namespace, experiment: Any, jobs: Any) -> int:
    from dithc.core.artifacts import Manifest, outputs
    from dithc.report import reproduction as drawing
    from dithc.workflow import reproduction

    document = reproduction.build_target(
        experiment,
        jobs,
        args.target,
        cells=args.cells or args.out.parent / "cells" / args.target,
        page=args.out.parent,
        command=args.command,
        scores=args.scores,
        pictures=args.mosaics,
        versions=Manifest.code_here(),
    )
    drawing.write_csv(document, args.out.with_suffix(".csv"))
    drawing.draw_target(document, args.out.with_suffix(""))
    outputs.write(args.out, document.to_json())
    for claim in drawing.check_claims([document]):
        print(f"{'agrees' if claim.holds else 'does not agree'} with the paper: {claim.text}")
    states = [cell.status for cell in document.cells]
    counts = ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))
    print(f"{document.paper}: {counts or 'no cells'}; {args.out}")
    return 0


def _page(args: argparse.Namespace) -> int:
    from dithc.core.reproduction import TargetResult
    from dithc.report import reproduction as drawing

    drawing.write_page([TargetResult.read(path) for path in args.results], args.out)
    print(args.out)
    return 0
