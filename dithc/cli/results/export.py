"""`dithc export`: writes weights, images or tiles for other programs."""

import argparse
from pathlib import Path
from typing import Any, Literal

from dithc.core.logging import user_error

SUMMARY = (
    "Writes for other programs: a checkpoint's weights (safetensors, the original DiT code, diffusers), generated images "
    "and real tiles (GeoTIFF)."
)
EXAMPLE = (
    "dithc export --checkpoint results/demo/runs/sentinel2/step_0001000.json --out sentinel2.safetensors\n"
    "dithc export --samples results/demo/samples/sentinel2-after/manifest.json --select 0:8 --out products"
)
FORMATS = ("safetensors", "official", "diffusers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, metavar="MANIFEST", help="manifest of a run, to export its weights")
    source.add_argument("--samples", type=Path, metavar="MANIFEST", help="manifest of generated images")
    source.add_argument("--tiles", type=Path, metavar="MANIFEST", help="manifest of real tiles")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="of weights: one safetensors file with the official names (default), a .pt file for the original DiT "
        "code (official), or a folder for diffusers' DiTTransformer2DModel.from_pretrained. Images become "
        "cloud-optimized GeoTIFF files in the units and integers of their dataset, with bands, scale, seeds and checkpoint",
    )
    parser.add_argument("--weights", choices=("ema", "raw"), help="averaged or raw weights (default ema)")
    parser.add_argument("--select", metavar="FIRST:END", help="images, END exclusive, both optional (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="file to write; folder for diffusers and images")


def folder(args: argparse.Namespace) -> Path:
    return Path(args.out)


def run(args: argparse.Namespace) -> int:
    of_weights = args.checkpoint is not None
    unused = [name for name in (["select"] if of_weights else ["format", "weights"]) if getattr(args, name)]
    if unused:
        content = "weights of a checkpoint" if of_weights else "images, which become GeoTIFF files"
        raise user_error(
            f"--{unused[0]} is not for {content}",
            got=f"--{unused[0]} {getattr(args, unused[0])}",
            expected="--format and --weights" if of_weights else "--select",
            fix=f"remove --{unused[0]}",
        )
    if not of_weights:
        return _images(args)
    from dithc.train import export

    layout: Any = args.format or FORMATS[0]
    written = export(args.checkpoint, weights=args.weights or "ema", layout=layout, out=args.out)
    print(f"{args.out}: step {written['step']}, {written['tensors']} tensors, {written['bytes']} bytes")
    return 0


def _images(args: argparse.Namespace) -> int:
    from dithc.data.export import export_images

    str(args.out.resolve()).encode()  # GDAL accepts UTF-8 only; the command line reports the error
    stage: Literal["sample", "tiles"] = "sample" if args.samples else "tiles"
    numbers = export_images(args.samples or args.tiles, stage=stage, out=args.out, select=args.select or ":")
    print(f"{args.out}: {numbers['images']} images, {sum(numbers['clipped'].values())} of {numbers['values']} clipped")
    return 0
