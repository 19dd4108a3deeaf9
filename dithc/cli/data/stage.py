"""`dithc stage`: reads the scenes of a data set onto one grid."""

import argparse
import time
from pathlib import Path

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
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--dataset", required=True, help="name in the section `datasets`")
    parser.add_argument("--inputs", type=Path, nargs="?", help="manifest of the generated input, if it is generated")
    parser.add_argument("--out", type=Path, required=True, help="manifest to write; the stacks stand beside it")
    parser.add_argument("--threads", type=int, default=1, help="cores; with several, processes read scenes (default 1)")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out).parent


def run(args: argparse.Namespace) -> int:
    """Stages; what an earlier run left stays as it was unless all goes well, and scenes that it read are not read again."""
    from dithc.config import load, named
    from dithc.data import stage_scenes

    start = time.monotonic()
    if args.threads < 1:
        raise problem(
            "--threads is wrong", got=args.threads, expected="1 or more", remedy="leave it out, or give cores"
        )
    experiment = load(args.config)
    dataset = named(experiment.datasets, args.dataset, key="datasets")
    inputs = {}
    if args.inputs is not None:
        generated = Manifest.read(args.inputs, stage="synthesize")
        inputs[str(args.inputs)] = generated.digest
        for entry in generated.files:
            Manifest.whole(args.inputs.parent / entry["path"])
        source = args.inputs.parent / "files"
    elif dataset.source.path is not None:
        source = Path(dataset.source.path)
    else:
        raise problem(
            f"the input of data set {args.dataset!r} is generated, and it was not said where it is",
            got="no --inputs",
            expected="the manifest that `dithc synthesize` wrote",
            remedy="pass --inputs MANIFEST",
        )
    folder = args.out.parent
    numbers = stage_scenes(dataset, source, out=folder, threads=args.threads)
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    Manifest(
        stage="stage",
        name=args.dataset,
        spec=Manifest.spec_of(experiment, "stage", args.dataset),
        inputs=inputs,
        files=Manifest.entries(folder, [folder / name for name in names if folder / name != args.out]),
        numbers=numbers,
        seconds=time.monotonic() - start,
    ).write(args.out)
    log.info(f"{numbers['accepted']} of {numbers['scenes']} scenes of {args.dataset} staged in {folder}")
    return 0
