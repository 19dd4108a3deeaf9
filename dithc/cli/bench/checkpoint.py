"""`dithc bench checkpoint`: what a checkpoint costs the training beside which it is written."""

import argparse
import tempfile
from pathlib import Path

from dithc.cli.bench.arguments import Kind, add_model, preset
from dithc.cli.ranks import ranks


def _add(parser: argparse.ArgumentParser) -> None:
    add_model(parser, default="DiT-B/2")
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), default="cftp", help="(default cftp)")
    parser.add_argument("--rounds", type=int, default=3, help="checkpoints on the clock (default 3)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock (default 2)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where checkpoints are written, and removed after it: the disk that is measured (default: this folder)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")


def _run(args: argparse.Namespace) -> int:
    """Measures on the ranks of `dithc launch`, or on one; prints a table."""
    import json
    import os

    import torch

    from dithc.bench import table
    from dithc.config import Experiment
    from dithc.hardware import discover
    from dithc.runs import atomic_write, outputs
    from dithc.train import Rehearsal, rehearse

    machine = discover()
    with ranks(Experiment(), expected=None) as group:
        folder = group.broadcast_object(_make_below(args.folder) if group.rank == 0 else None)
        settings = Rehearsal(
            model={"preset": preset(args.model), **dict(args.override)},
            batch=args.batch,
            dtype=args.dtype,
            strategy=args.strategy,
            warmup=args.warmup,
            steps=1,
            saves=args.rounds,
            saves_to=folder,
        )
        try:
            measured = rehearse(settings, group)
        finally:
            if group.rank == 0:
                outputs.remove(Path(folder))
        if group.rank == 0:
            result = {"bench": "checkpoint", **measured, "machine": machine.to_dict()}
            result |= {"load_average": os.getloadavg(), "versions": {"torch": torch.__version__}}
            print(table(result))
            if args.json:
                atomic_write(args.json, json.dumps(result, indent=1) + "\n")
    return 0


def _make_below(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    from dithc.runs import outputs

    place = tempfile.mkdtemp(prefix="dithc-bench-", dir=folder)
    outputs.mark_scratch(Path(place))
    return place


CHECKPOINT = Kind(
    "steps while a checkpoint is written, and without",
    "dithc bench checkpoint --model S/2 --folder /tmp --json checkpoint.json",
    _add,
    _run,
)
