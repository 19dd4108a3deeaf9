"""`dithc synthesize`: writes small generated inputs with the structure of real ones."""

import argparse
from pathlib import Path

from dithc.cli.making import Making
from dithc.log import problem
from dithc.runs import outputs

SUMMARY = (
    "Writes small generated inputs with the structure of real ones; the same arguments give the same bytes. Either "
    "--kind and its options with --out FOLDER, or --config and --dataset with --out MANIFEST (files stand in `files/` beside it)."
)
OPTIONS = ("seed", "scenes", "size", "classes", "gsd")
EXAMPLE = (
    "dithc synthesize --config config/experiments/demo.yaml --dataset landscape --out "
    "results/demo/inputs/landscape/manifest.json\n"
    "dithc synthesize --config config/experiments/demo.yaml --dataset sentinel2 --out "
    "results/demo/inputs/sentinel2/manifest.json\n"
    "dithc synthesize --kind sentinel2 --out my-scenes --seed 1 --scenes 2 --size 768"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--kind",
        choices=("sentinel2", "gaofen2", "image-folder"),
        help="what to generate",
    )
    what.add_argument("--config", type=Path, help="configuration file of an experiment")
    parser.add_argument("--dataset", help="with --config: name in the section `datasets`")
    parser.add_argument(
        "--out", required=True, type=Path, help="folder to make, or with --config the manifest to write"
    )
    parser.add_argument("--seed", type=int, help="chooses the landscapes (default 0)")
    parser.add_argument("--scenes", type=int, help="products, or images per class (default 1)")
    parser.add_argument("--size", type=int, help="side in pixels (default 768; images: the crop, 256)")
    parser.add_argument("--classes", type=int, help="image-folder only: number of classes, 1 to 8 (default 4)")
    parser.add_argument("--gsd", type=float, help="gaofen2 only: metres per pixel (default 4)")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out) if args.kind is not None else Path(args.out).parent


def run(args: argparse.Namespace) -> int:
    """Writes the inputs; a finished folder of the same arguments is left as it is."""
    from dithc.data import synthesize

    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    if not args.config:
        print(synthesize(args.kind, args.out, **options))
        return 0
    if options:
        raise problem(
            "these options have no meaning beside --config",
            got=", ".join(f"--{name} {value}" for name, value in options.items()),
            expected="--config and --dataset alone: the configuration says what is generated",
            fix="leave them out and set `source.synthetic` (or `seed`) in the configuration, or use --kind instead",
        )
    return _for_dataset(args)


def _for_dataset(args: argparse.Namespace) -> int:
    """Generates what a data set of an experiment asks for, anew where its settings changed."""
    from dithc.config import load, named
    from dithc.data import synthesize

    making = Making(load(args.config), "synthesize", args.dataset, args.out)
    source = named(making.experiment.datasets, args.dataset or "", key="datasets").source
    if source.synthetic is None or source.kind in ("sentinel2-array", "geotiff"):
        raise problem(
            f"datasets.{args.dataset} cannot be generated",
            got=f"kind {source.kind}, path {source.path}",
            expected="a source of kind sentinel2, gaofen2 or image-folder with `synthetic`",
            fix="generate another data set, or stage this one from its files",
        )
    making.output.check_owner(stage="synthesize", name=args.dataset)
    making.output.plan([args.out])
    files = making.folder / "files"
    wanted = source.synthetic
    pictures = source.kind == "image-folder"
    synthesize(
        source.kind,
        files,
        seed=making.experiment.seed,
        scenes=wanted.scenes,
        size=wanted.size,
        classes=wanted.classes if pictures else None,
        gsd=source.gsd_m if source.kind == "gaofen2" else None,
        replace=True,
    )
    paths = outputs.files_of(files)
    making.write({"files": len(paths), "bytes": sum(path.stat().st_size for path in paths)}, paths)
    return 0
