"""`dithc synthesize`: generates small inputs with the structure of real data."""

import argparse

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.cli.stage_context import folder as folder
from dithc.core.artifacts import outputs
from dithc.core.logging import user_error

SUMMARY = (
    "Generates the inputs of a dataset with `source.synthetic`: small files with the structure of real data, "
    "written to `files/` next to the manifest. The same configuration produces the same bytes."
)
EXAMPLE = (
    "dithc synthesize --config config/experiments/demo.yaml --dataset landscape --out "
    "results/demo/inputs/landscape/manifest.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "dataset")
    add_out(parser, "`files/` is written")


def run(args: argparse.Namespace) -> int:
    """Generate the inputs of a dataset; an earlier result is replaced."""
    from dithc.config import datasets, load
    from dithc.data import synthesize

    record = CommandRecord(load(args.config), "synthesize", args.dataset, args.out)
    source = record.experiment.entry(record.experiment.datasets, args.dataset).source
    synthetic = source.synthetic
    if synthetic is None:
        raise user_error(
            f"datasets.{args.dataset} cannot be generated",
            got=f"kind {source.kind}, path {source.path}",
            expected="a source of kind sentinel2, gaofen2 or image-folder with `synthetic`",
            fix="generate another dataset, or stage this dataset from its files",
        )
    record.output.check_owner(stage="synthesize", name=args.dataset)
    record.output.plan([args.out])
    files = record.folder / "files"
    synthesize(
        source.kind,
        files,
        seed=record.experiment.seed,
        scenes=synthetic.scenes,
        size=synthetic.size,
        classes=synthetic.classes,
        gsd=source.gsd_m if isinstance(source, datasets.Gaofen2Source) else 4.0,
    )
    paths = outputs.files_of(files)
    record.write({"files": len(paths), "bytes": sum(path.stat().st_size for path in paths)}, paths)
    return 0
