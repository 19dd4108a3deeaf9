"""`dithc fetch`: brings the scenes of a catalogue into the folder of a data set."""

import argparse
from pathlib import Path

from dithc.config import datasets
from dithc.log import problem

SUMMARY = (
    "Searches a STAC catalogue for the scenes of a data set (`source.search`), or takes items that you have (--items), and "
    "brings items and files into `source.path`, with a lock beside them; run again it goes on, and fetches nothing that is "
    "there. For a machine with network: staging needs none. A token stands in DITHC_STAC_TOKEN, hosts of files that get it too "
    "in DITHC_STAC_TOKEN_HOSTS."
)
EXAMPLE = "dithc fetch --config config/experiments/my.yaml --dataset sentinel2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument("--dataset", required=True, help="name in the section `datasets`, of kind sentinel2-stac")
    parser.add_argument("--items", type=Path, help="file or folder of STAC items, for a source without `search`")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(str(_source(args).path))


def run(args: argparse.Namespace) -> int:
    """Fetches what is not there; prints the lock."""
    from dithc.stac import fetch

    source = _source(args)
    fetch(source, items=args.items)
    print(folder(args) / "lock.json")
    return 0


def _source(args: argparse.Namespace) -> datasets.Sentinel2Stac:
    from dithc.config import load, named

    source = named(load(args.config).datasets, args.dataset, key="datasets").source
    if not isinstance(source, datasets.Sentinel2Stac):
        raise problem(
            f"datasets.{args.dataset} is nothing to fetch",
            got=f"kind {source.kind}",
            expected="a source of kind sentinel2-stac",
            fix="name another data set, or set `kind: sentinel2-stac` and `search`",
        )
    return source
