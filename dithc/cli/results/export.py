"""`dithc export`: writes weights, images, tiles or the provenance of an experiment for other programs."""

import argparse
from pathlib import Path
from typing import Any, Literal

from dithc.core.logging import user_error

SUMMARY = (
    "Writes for other programs: a checkpoint's weights (safetensors, the original DiT code, diffusers), generated images "
    "and real tiles (GeoTIFF, zarr), or the provenance of an experiment (RO-Crate)."
)
EXAMPLE = (
    "dithc export --checkpoint results/demo/runs/sentinel2/step_0000400.json --format official --out sentinel2.pt\n"
    "dithc export --checkpoint results/demo/runs/sentinel2/step_0000400.json --format diffusers --out transformer\n"
    "dithc export --samples results/demo/samples/sentinel2-after/manifest.json --format geotiff --select 0:8 "
    "--out products\n"
    "dithc export --ro-crate results/demo"
)
WEIGHTS = ("safetensors", "official", "diffusers")
IMAGES = ("geotiff", "zarr")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, metavar="MANIFEST", help="manifest of a run, to export its weights")
    source.add_argument("--samples", type=Path, metavar="MANIFEST", help="manifest of generated images")
    source.add_argument("--tiles", type=Path, metavar="MANIFEST", help="manifest of real tiles")
    source.add_argument(
        "--ro-crate",
        type=Path,
        metavar="RESULTS",
        help="results/NAME of an experiment: write ro-crate-metadata.json there, a Workflow Run RO-Crate with the hashes "
        "of the manifests",
    )
    parser.add_argument(
        "--format",
        choices=(*WEIGHTS, *IMAGES),
        help="for weights: one safetensors file with the official names (default), a .pt file for the original DiT "
        "code (official), or a folder for diffusers' DiTTransformer2DModel.from_pretrained. For images: a folder of "
        "cloud-optimized GeoTIFF files (default) or with a zarr store, in the units and integers of their dataset, "
        "with bands, scale, seeds and checkpoint",
    )
    parser.add_argument("--weights", choices=("ema", "raw"), help="averaged or raw weights (default ema)")
    parser.add_argument("--select", metavar="FIRST:END", help="images, END exclusive, both optional (default: all)")
    parser.add_argument("--out", type=Path, help="file to write; folder for diffusers and images; not for --ro-crate")


def folder(args: argparse.Namespace) -> Path:
    return Path(args.ro_crate or args.out or ".")


def run(args: argparse.Namespace) -> int:
    if (args.out is None) != (args.ro_crate is not None):
        raise user_error(
            "--out is missing" if args.out is None else "--out is not for --ro-crate",
            got=f"--out {args.out}",
            expected="--out for weights and images; none for --ro-crate, which writes into RESULTS",
            fix="add --out" if args.out is None else "remove --out",
        )
    if args.ro_crate is not None:
        return _ro_crate(args.ro_crate)
    of_weights = args.checkpoint is not None
    formats = WEIGHTS if of_weights else IMAGES
    layout: Any = args.format or formats[0]
    unused = "--select" if of_weights and args.select else "--weights" if not of_weights and args.weights else None
    if layout not in formats or unused:
        content = "weights of a checkpoint" if of_weights else "images"
        raise user_error(
            f"{unused or f'--format {layout}'} is not for {content}",
            got=unused or layout,
            expected=f"of {content}: --format {' | '.join(formats)}, and {'--weights' if of_weights else '--select'}",
            fix=f"remove {unused}" if unused else "choose one of these formats",
        )
    if not of_weights:
        return _images(args, layout)
    from dithc.train import export

    written = export(args.checkpoint, weights=args.weights or "ema", layout=layout, out=args.out)
    print(f"{args.out}: step {written['step']}, {written['tensors']} tensors, {written['bytes']} bytes")
    return 0


def _images(args: argparse.Namespace, layout: Any) -> int:
    from dithc.data.export import export_images

    str(args.out.resolve()).encode()  # GDAL accepts UTF-8 only; the command line reports the error
    stage: Literal["sample", "tiles"] = "sample" if args.samples else "tiles"
    numbers = export_images(
        args.samples or args.tiles, stage=stage, layout=layout, out=args.out, select=args.select or ":"
    )
    print(f"{args.out}: {numbers['images']} images, {sum(numbers['clipped'].values())} of {numbers['values']} clipped")
    return 0


def _ro_crate(results: Path) -> int:
    from dithc.core.caches import project_folder
    from dithc.data.export import write_ro_crate

    path, count = write_ro_crate(results, workflow=project_folder() / "workflow/Snakefile")
    print(f"{path}: {count} files")
    return 0
