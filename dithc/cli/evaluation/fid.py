"""`dithc fid`: distance between generated and real images, with the conditions needed to interpret it."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.cli.stage_context import CommandRecord, add_entry_arguments, add_out
from dithc.core.artifacts import Manifest, atomic_write, outputs, summaries
from dithc.core.logging import user_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dithc.config import evaluations

SUMMARY = (
    "Compares the features of generated images with those of real images: FID, KID, and the floor of the real set."
)
EXAMPLE = (
    "dithc fid --config config/experiments/demo.yaml --evaluation sentinel2-after --real "
    "results/demo/features/sentinel2.all.all.landscape-classifier/manifest.json --generated "
    "results/demo/features/sentinel2-after/manifest.json --tiles results/demo/tiles/sentinel2/manifest.json --out "
    "results/demo/fid/sentinel2-after/manifest.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "evaluation")
    parser.add_argument("--real", type=Path, required=True, help="manifest of the real features")
    parser.add_argument("--generated", type=Path, required=True, help="manifest of the generated features")
    parser.add_argument("--tiles", type=Path, help="manifest of the real tiles, for the share of copies")
    add_out(parser, "the curves are written")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")


def run(args: argparse.Namespace) -> int:
    """Compare the features, print the score with its conditions, and write the manifest."""
    from dithc.config import load
    from dithc.data import Tiles
    from dithc.evaluate import compare_features

    record = CommandRecord(load(args.config), "fid", args.evaluation, args.out)
    record.check()
    evaluation = record.experiment.entry(record.experiment.evaluations, args.evaluation)
    real, _ = (record.read(path, "features") for path in (args.real, args.generated))  # their inputs name the tiles
    is_train = _is_train(evaluation, args.tiles, real) if args.tiles else None
    numbers = compare_features(
        args.real.parent,
        args.generated.parent,
        seed=record.experiment.seed,
        is_train=is_train,
        metrics=evaluation.metrics,
        triplets=evaluation.triplet_names,
    )
    if args.tiles:
        numbers["rendering"] = dict(Tiles(args.tiles.parent).info["display"])
    record.claim()
    written = []
    if content := numbers.pop("curves", None):
        written = [record.folder / summaries.CURVES_FILE]
        record.output.plan(written)
        atomic_write(written[0], json.dumps(content) + "\n")
    record.output.prune(written)
    record.write(numbers, written)
    if args.json:
        outputs.write(args.json, json.dumps(numbers, indent=1) + "\n")
    print(_table(args.evaluation, numbers))
    return 0


def _is_train(evaluation: "evaluations.EvaluationConfig", path: Path, real: Manifest) -> "NDArray[np.bool_] | None":
    """Return a mask of real tiles used for training; None if copies of them are not searched."""
    import numpy as np

    from dithc.data import Tiles

    if Manifest.read(path, stage="tiles").digest not in real.inputs.values():
        raise user_error(
            f"tiles {path} are not the tiles of the real features",
            got="tiles that are not in the manifest of the features",
            expected=f"one of {', '.join(real.inputs)}",
            fix="pass the manifest of those tiles, or rerun `dithc features`",
        )
    if not evaluation.needs_copy_search:
        return None
    tiles = Tiles(path.parent)
    return np.isin(tiles.rows(evaluation.real_split), tiles.rows("train"))


def _rendering(display: dict[str, Any] | None) -> str:
    if display is None:
        return "unknown without --tiles"
    return f"{', '.join(display['bands'])} as red, green, blue, {display['low']} becomes 0 and {display['high']} 255"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.3g} %"


def _table(evaluation: str, numbers: dict[str, Any]) -> str:
    floor = "none" if numbers["floor"] is None else f"{numbers['floor']:.4g} (real half against real half)"
    kid = "none" if numbers["kid"] is None else f"{numbers['kid']:.4g}"
    if numbers["kid_interval"] is not None:
        kid += " [{:.4g}, {:.4g}] (95 %)".format(*numbers["kid_interval"])
    rows = {
        "FID": f"{numbers['fid']:.6g}",
        "floor": floor,
        "KID": kid,
        "n": f"{numbers['n_real']} real, {numbers['n_generated']} generated",
        "extractor": f"{numbers['extractor']} sha256 {numbers['sha256']}",
        "resize": numbers["resize"],
        "rendering": _rendering(numbers.get("rendering")),
        "comparable": "yes" if numbers["comparable_to_published"] else "NO",
    }
    rows["clipped"] = f"{_share(numbers['clipped_real'])} real, {_share(numbers['clipped_generated'])} generated pixels"
    if found := numbers["detectability"]:
        rows["AUC"] = ", ".join(f"{one['auc']:.2f} at {scale}" for scale, one in found.items())
    if numbers.get("precision") is not None:
        rows["precision"] = f"{numbers['precision']:.4g}, recall {numbers['recall']:.4g}"
    for name, triplet in numbers.get("triplets", {}).items():
        clipped = f"{_share(triplet['clipped_real'])} real, {_share(triplet['clipped_generated'])} generated"
        rows[name] = f"FID {triplet['fid']:.4g}, KID {triplet['kid']:.4g}; clipped {clipped}"
    rows |= _pixel_rows(numbers.get("pixels", {}))
    if numbers["memorized_fraction"] is not None:
        rows["copies"] = (
            f"{_share(numbers['memorized_fraction'])} (of held-out tiles: {_share(numbers['memorized_fraction_val'])})"
        )
    lines = [f"{evaluation}", *(f"  {name:<10} {value}" for name, value in rows.items())]
    return "\n".join(lines + [f"  warning    {text}" for text in numbers["warnings"]])


def _pixel_rows(pixels: dict[str, Any]) -> dict[str, str]:
    """Return table rows of the metrics measured in the units of the dataset."""
    rows = {}
    if bands := pixels.get("bands"):
        rows["bands"] = f"Wasserstein, {bands['units']}: " + _each(bands["wasserstein"])
        if bands.get("spectral_angle_deg") is not None:
            rows["angle"] = f"{bands['spectral_angle_deg']:.4g} degrees between mean spectra"
    indices = pixels.get("indices", {})
    rows |= {
        name: f"Wasserstein {one['wasserstein']:.4g}"
        for name, one in indices.items()
        if name != "absent" and one["wasserstein"] is not None
    }
    if spectra := pixels.get("spectra"):
        rows["spectra"] = "log-spectral distance, dB: " + _each(spectra["log_spectral_distance_db"])
    absent = [text for part in pixels.values() for text in part.get("absent", [])]
    return rows | ({"absent": "; ".join(absent)} if absent else {})


def _each(values: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {'none' if value is None else format(value, '.3g')}" for name, value in values.items())
