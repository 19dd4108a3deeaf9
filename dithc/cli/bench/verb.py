"""`dithc bench`: times what training is made of, on this machine."""

import argparse

from dithc.cli.bench.automem import AUTOMEM
from dithc.cli.bench.checkpoint import CHECKPOINT
from dithc.cli.bench.in_process import OPS, STEP
from dithc.cli.bench.quality import QUALITY
from dithc.cli.bench.rehearsal import TRAINING
from dithc.cli.bench.staging import DATA
from dithc.cli.bench.trainings import COLLECTIVES, SCALING, STEPWISE, STRATEGIES

SUMMARY = "Time operators or a whole training step in several ways, in turns, beside the machine's ceilings."
EXAMPLE = "dithc bench step --model DiT-S/2 --batch 16 --dtype bf16 --compare eager,compile --json bench.json"

KINDS = {
    "ops": OPS,
    "step": STEP,
    "strategies": STRATEGIES,
    "scaling": SCALING,
    "stepwise": STEPWISE,
    "automem": AUTOMEM,
    "collectives": COLLECTIVES,
    "training": TRAINING,
    "checkpoint": CHECKPOINT,
    "quality": QUALITY,
    "data": DATA,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be timed and its settings."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="|".join(KINDS))
    for name, kind in KINDS.items():
        kind.add_arguments(kinds.add_parser(name, help=kind.help))


def run(args: argparse.Namespace) -> int:
    """Measures and prints a table; status 1 when no contender ran."""
    return KINDS[args.kind].run(args)
