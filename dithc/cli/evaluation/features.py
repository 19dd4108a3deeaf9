"""`dithc features`: features of real tiles or generated images, and their statistics."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.cli.distributed import HELD, add_ranks_argument, leased, ranks
from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.core.artifacts import Manifest, digest, summaries
from dithc.core.logging import user_error

if TYPE_CHECKING:
    from dithc.config import ExperimentConfig
    from dithc.engine.comm import Group
    from dithc.evaluate import Extractor

SUMMARY = "Extracts features of real tiles (--tiles, --split) or of generated images (--samples), and their statistics."
EXAMPLE = (
    "dithc features --config config/experiments/demo.yaml --extractor landscape-classifier --extractor-manifest "
    "results/demo/extractors/landscape-classifier/manifest.json --tiles "
    "results/demo/tiles/sentinel2/manifest.json --split all --out "
    "results/demo/features/sentinel2.all.all.landscape-classifier/manifest.json\n"
    "dithc features --config config/experiments/demo.yaml --extractor landscape-classifier --extractor-manifest "
    "results/demo/extractors/landscape-classifier/manifest.json --samples "
    "results/demo/samples/sentinel2-after/manifest.json --out results/demo/features/sentinel2-after/manifest.json"
)
BATCH = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "extractor")
    parser.add_argument(
        "--extractor-manifest", type=Path, nargs="?", help="manifest of the extractor, if dithc trained it"
    )
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--tiles", type=Path, help="manifest of real tiles")
    images.add_argument("--samples", type=Path, help="manifest of generated images")
    parser.add_argument("--split", choices=["train", "val", "test", "all"], default="all", help="split of real tiles")
    parser.add_argument(
        "--num-images", default="all", metavar="N", help="number of real tiles, drawn by the seed (all)"
    )
    triplet = "also of three other bands as red, green, blue, each from low to high: B12+B11+B04; may be repeated"
    parser.add_argument("--band-triplet", action="append", default=[], metavar="R+G+B", help=triplet)
    parser.add_argument(
        "--pixel-statistics", action="store_true", help="also measure bands, indices and spectra of pixels"
    )
    add_out(parser, "features are written")
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Extract features. Shards that an earlier execution finished are reused."""
    from dithc.config import load

    experiment = load(args.config)
    with ranks(experiment, expected=args.ranks) as group, leased(group, args.out.parent) as is_acquired:
        if not is_acquired:
            return HELD
        _extract(args, experiment, group)
    return 0


def _extract(args: argparse.Namespace, experiment: "ExperimentConfig", group: "Group") -> None:
    from dithc.cli.evaluation.image_sets import open_source
    from dithc.evaluate import extract_features, measure_pixels

    record = CommandRecord(experiment, "features", args.extractor, args.out, name=args.out.parent.name)
    record.check()
    source = open_source(args, experiment)
    pixels = source.needed.without_gaps() if args.pixel_statistics else None
    record.inputs[str(source.path)] = source.manifest.digest
    if args.extractor_manifest:
        record.read(args.extractor_manifest, "extractor")
    extractor = open_extractor(experiment, args.extractor, args.extractor_manifest)
    folder = record.folder
    if group.rank == 0:
        record.claim()
    numbers = extract_features(source.shown(), extractor, folder, group=group, batch=BATCH)
    for triplet in args.band_triplet:
        extract_features(source.shown(triplet), extractor, folder / triplet, group=group, batch=BATCH)
    if pixels is not None:
        set_hash = numbers["set_hash"] if source.needed.whole is None else digest([numbers["set_hash"], "whole"])
        measure_pixels(pixels.stored, pixels.labels, folder, bands=pixels.bands, set_hash=set_hash, group=group)
    if group.rank == 0:
        files = _files(record, numbers, args)
        record.output.prune(files)
        record.write(numbers, files)
    group.barrier()


def _files(record: CommandRecord, numbers: "summaries.FeaturesSummary", args: argparse.Namespace) -> list[Path]:
    formats = ("shard-{:05d}.npy", "thumbnails-{:05d}.npy", "structure-{:05d}.npy", "shard-{:05d}.json")
    names = [name.format(number) for number in range(numbers["shards"]) for name in formats]
    names += ["stats.npz", "features.json", "images.json"]
    names = [f"{part}{name}" for part in ("", *(f"{triplet}/" for triplet in args.band_triplet)) for name in names]
    names += ["pixels.npz"] if args.pixel_statistics else []
    return [record.folder / name for name in names]


def open_extractor(experiment: "ExperimentConfig", name: str, trained: Path | None) -> "Extractor":
    """Load an extractor of the configuration; `trained` is the manifest of an extractor that the workflow trains."""
    from dithc.config import codecs
    from dithc.evaluate import load_extractor

    settings = experiment.entry(experiment.extractors, name)
    if isinstance(settings, codecs.PluginExtractor):
        return load_extractor(settings)
    if settings.kind != "classifier":
        assert settings.path is not None
        return load_extractor(settings.kind, Path(settings.path), resize=settings.resize, trust=settings.trust_code)
    if trained is None:
        raise user_error(
            f"extractor {name!r} is trained by the workflow",
            got="no --extractor-manifest",
            expected="the manifest that `dithc extractor` wrote",
            fix="run `dithc extractor` first and pass its manifest as --extractor-manifest",
        )
    return load_extractor("classifier", Manifest.verified(trained.parent / "classifier.safetensors"))
