"""`dithc fetch`: downloads the scenes of a catalog into the folder of a dataset."""

import argparse
from pathlib import Path

from dithc.config import datasets
from dithc.core.logging import user_error

SUMMARY = (
    "Searches a STAC catalog for the scenes of a dataset (`source.search`), or reads given items (--items). Downloads "
    "items and files into `source.path` and writes a lock file there. A rerun continues and skips existing files. "
    "Requires network access, unlike ingestion. DITHC_STAC_TOKEN holds the token, DITHC_STAC_TOKEN_HOSTS the file "
    "hosts that also receive it."
)
EXAMPLE = "dithc fetch --config config/experiments/my.yaml --dataset sentinel2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--dataset", required=True, help="name in the section `datasets`, of kind sentinel2-stac")
    parser.add_argument("--items", type=Path, help="file or folder of STAC items, for a source without `search`")


def folder(args: argparse.Namespace) -> Path:
    return Path(str(_source(args).path))


def run(args: argparse.Namespace) -> int:
    """Download missing items and files. Print the path of the lock file."""
    from dithc.data.stac import fetch_scenes

    fetch_scenes(_source(args), items=args.items)
    print(folder(args) / "lock.json")
    return 0


def _source(args: argparse.Namespace) -> datasets.Sentinel2StacSource:
    from dithc.config import load

    experiment = load(args.config)
    source = experiment.entry(experiment.datasets, args.dataset).source
    if not isinstance(source, datasets.Sentinel2StacSource):
        raise user_error(
            f"datasets.{args.dataset} has no catalog to fetch from",
            got=f"kind {source.kind}",
            expected="a source of kind sentinel2-stac",
            fix="choose another dataset, or set `kind: sentinel2-stac` and `search`",
        )
    return source
