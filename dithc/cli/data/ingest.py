"""`dithc ingest`: reads the scenes of a dataset into one grid."""

import argparse
from pathlib import Path

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.artifacts import Manifest
from dithc.core.logging import get_logger, user_error

SUMMARY = "Reads, checks and stacks every scene file of a dataset. Records a row for each file, accepted or rejected."
EXAMPLE = (
    "dithc ingest --config config/experiments/demo.yaml --dataset landscape --inputs "
    "results/demo/inputs/landscape/manifest.json --out results/demo/scenes/landscape/manifest.json"
)
log = get_logger("dithc.stage")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "dataset")
    parser.add_argument("--inputs", type=Path, nargs="?", help="manifest of generated input, for a generated dataset")
    add_out(parser, "the stacks are written")
    parser.add_argument("--workers", type=int, default=1, help="cores, one reading process each (default 1)")


def run(args: argparse.Namespace) -> int:
    """Stage the scenes. Earlier output stays unchanged until all succeed, and scenes read earlier are not reread."""
    from dithc.config import load
    from dithc.data import ingest_scenes, products

    if args.workers < 1:
        raise user_error("--workers", got=args.workers, expected="1 or more", fix="correct --workers, or remove it")
    record = CommandRecord(load(args.config), "ingest", args.dataset, args.out)
    dataset = record.experiment.entry(record.experiment.datasets, args.dataset)
    record.check()
    if args.inputs is not None:
        for entry in record.read(args.inputs, "synthesize").files:
            Manifest.verified(args.inputs.parent / entry["path"])
        source = args.inputs.parent / "files"
    elif dataset.source.path is not None:
        source = Path(dataset.source.path)
    else:
        raise user_error(
            f"the generated input of dataset {args.dataset!r} is missing",
            got="no --inputs",
            expected="the manifest that `dithc synthesize` wrote",
            fix="pass --inputs MANIFEST",
        )
    numbers = ingest_scenes(dataset, source, out=record.folder, threads=args.workers)
    restorations = record.experiment.restorations.items()
    hidden = [name for name, restoration in restorations if restoration.gap_source == args.dataset]
    if hidden and not products.Scenes(record.folder).has_gaps:
        raise user_error(
            f"`hide.dataset` of restorations.{hidden[0]}",
            got=f"{args.dataset}, whose scenes have neither clouds nor pixels without data",
            expected="a dataset of scenes with gaps",
            fix="choose another dataset, set `clouds` of its source, or hide generated shapes (`hide.share`)",
        )
    record.write(numbers, record.files())
    log.info(f"{numbers['accepted']} of {numbers['scenes']} scenes of {args.dataset} ingested in {record.folder}")
    return 0
