"""`dithc export`: writes a checkpoint's weights for other programs."""

import argparse
from pathlib import Path

SUMMARY = "Writes a checkpoint's weights for other programs: safetensors, the original DiT code, diffusers."
EXAMPLE = (
    "dithc export --checkpoint results/demo/runs/sentinel2/step_0000400.json --format official --out sentinel2.pt\n"
    "  dithc export --checkpoint results/demo/runs/sentinel2/step_0000400.json --format diffusers --out transformer"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="MANIFEST", help="manifest of a run")
    parser.add_argument("--weights", choices=("ema", "raw"), default="ema", help="averaged or raw weights (ema)")
    parser.add_argument(
        "--format",
        choices=("safetensors", "official", "diffusers"),
        default="safetensors",
        help="one safetensors file with the official names; a .pt file as the original DiT code reads it; or a folder that "
        "diffusers' DiTTransformer2DModel.from_pretrained opens (safetensors)",
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write; for diffusers the folder")


def folder(args: argparse.Namespace) -> Path:
    """What it writes."""
    return Path(args.out)


def run(args: argparse.Namespace) -> int:
    """Exports."""
    from dithc.train import export

    written = export(args.checkpoint, weights=args.weights, layout=args.format, out=args.out)
    print(f"{args.out}: step {written['step']}, {written['tensors']} tensors, {written['bytes']} bytes")
    return 0
