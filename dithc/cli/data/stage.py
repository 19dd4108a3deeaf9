"""`dithc stage`: reads the scenes of a data set onto one grid."""

import argparse
from pathlib import Path

from dithc.cli.making import Making, add_of, add_out
from dithc.cli.making import folder as folder
from dithc.log import logger, problem
from dithc.runs import Manifest

SUMMARY = "Reads every scene file of a data set, checks it, and stacks it with the others; a row for each, used or not."
EXAMPLE = (
    "dithc stage --config config/experiments/demo.yaml --dataset landscape --inputs "
    "results/demo/inputs/landscape/manifest.json --out results/demo/scenes/landscape/manifest.json\n"
    "dithc stage --config config/experiments/demo.yaml --dataset sentinel2 --inputs "
    "results/demo/inputs/sentinel2/manifest.json --out results/demo/scenes/sentinel2/manifest.json"
)
log = logger("dithc.stage")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_of(parser, "dataset")
    parser.add_argument("--inputs", type=Path, nargs="?", help="manifest of the generated input, if it is generated")
    add_out(parser, "the stacks stand")
    parser.add_argument("--threads", type=int, default=1, help="cores; with several, processes read scenes (default 1)")


def run(args: argparse.Namespace) -> int:
    """Stages; what an earlier run left stays as it was unless all goes well, and scenes that it read are not read again."""
    from dithc.config import load, named
    from dithc.data import stage_scenes

    if args.threads < 1:
        raise problem("--threads is wrong", got=args.threads, expected="1 or more", fix="leave it out, or give cores")
    making = Making(load(args.config), "stage", args.dataset, args.out)
    dataset = named(making.experiment.datasets, args.dataset, key="datasets")
    making.check()
    if args.inputs is not None:
        for entry in making.read(args.inputs, "synthesize").files:
            Manifest.whole(args.inputs.parent / entry["path"])
        source = args.inputs.parent / "files"
    elif dataset.source.path is not None:
        source = Path(dataset.source.path)
    else:
        raise problem(
            f"the input of data set {args.dataset!r} is generated, and it was not said where it is",
            got="no --inputs",
            expected="the manifest that `dithc synthesize` wrote",
            fix="pass --inputs MANIFEST",
        )
    numbers = stage_scenes(dataset, source, out=making.folder, threads=args.threads)
    making.write(numbers, making.files())
    log.info(f"{numbers['accepted']} of {numbers['scenes']} scenes of {args.dataset} staged in {making.folder}")
    return 0
