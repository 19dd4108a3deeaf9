"""Arguments and dispatch of `dithc bench`."""

import argparse
from pathlib import Path
from typing import Any

from dithc.cli.bench.arguments import INTERRUPTED, PARTIAL_SUFFIX
from dithc.cli.bench.distributed import AUTOMEM, SCALING, STEPWISE, STRATEGIES
from dithc.cli.bench.quality import QUALITY
from dithc.cli.bench.single_process import CURVES, OPS, STEP
from dithc.cli.bench.training import TRAINING

SUMMARY = "Run a benchmark: time the variants of an operator, a step or a run in interleaved rounds and compare them."
KINDS = {
    "ops": OPS,
    "step": STEP,
    "curves": CURVES,
    "strategies": STRATEGIES,
    "scaling": SCALING,
    "stepwise": STEPWISE,
    "automem": AUTOMEM,
    "quality": QUALITY,
}
EXAMPLE = "\n".join(kind.example for kind in KINDS.values())
INTERNAL = {"training": TRAINING}  # started by other benchmarks; not listed in the help


# Measurements that do not resume: one rank of a training run, and an experiment of the workflow, which resumes itself.
IN_ONE_GO = ("training", "quality")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(KINDS))
    for name, kind in (KINDS | INTERNAL).items():
        text: dict[str, Any] = {"description": f"Measures {kind.help}.", "epilog": f"example:\n  {kind.example}"}
        text |= {"help": kind.help} if name in KINDS else {}
        kind.add_arguments(kinds.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **text))


def run(args: argparse.Namespace) -> int:
    """Run a measurement and print its table. Return 1 if every variant failed, 75 if stopped and resumable."""
    from dithc.bench.resume import MeasurementStopped, measurement_session

    kind = (KINDS | INTERNAL)[args.kind]
    if args.kind in IN_ONE_GO:
        return kind.run(args)
    journal = args.json.with_suffix(PARTIAL_SUFFIX) if args.json is not None else None
    with measurement_session(journal, settings=_identity(args) if journal is not None else {}) as session:
        try:
            status = kind.run(args)
        except MeasurementStopped:  # before there were enough values for a result
            return INTERRUPTED
        if not session.stopped_by:
            session.end()
    return status


def _identity(args: argparse.Namespace) -> dict[str, Any]:
    """Return every value that determines the measured values: arguments, input files and environment."""
    from dithc.bench import environment

    arguments = {name: value for name, value in vars(args).items() if name != "json"}
    folder: Path | None = arguments.get("inputs")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder is not None else []
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return {"arguments": arguments, "inputs": states, **environment.environment()}
