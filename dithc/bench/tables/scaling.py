"""Weak or strong scaling, for a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

TERA = 1e12
COLUMNS = (
    ("model", 8),
    ("ranks", 7),
    ("nodes", 7),
    ("images", 8),
    ("s a step", 10),
    ("+- MAD", 9),
    ("images/s", 10),
    ("TFLOP/s", 9),
    ("linear", 8),
    ("efficiency", 12),
    ("exposed s", 11),
    ("overlap", 9),
    ("over alone", 12),
)


def scaling_table(result: Mapping[str, Any]) -> str:
    """Format a line per model and rank count, then loss agreement and failures."""
    settings = result["settings"]
    rank = "of a rank" if settings["mode"] == "weak" else "over all ranks"
    lines = [
        f"{settings['mode']} scaling, {settings['strategy']}, {settings['dtype']}, {settings['batch']} images {rank}, "
        f"medians of {settings['rounds']} runs of {settings['steps']} steps",
        "".join(f"{name:>{width}}" for name, width in COLUMNS),
    ]
    points = [(curve["model"].removeprefix("DiT-"), point) for curve in result["curves"] for point in curve["points"]]
    lines += ["".join(_row(model, point)) for model, point in points]
    for model, point in points:
        agreed = point.get("same_training")
        if agreed:
            word = "the same losses and gradient norms as" if agreed["same"] else "OTHER LOSSES OR GRADIENT NORMS than"
            lines.append(
                f"{model}, {point['ranks']} rank(s): {word} on the fewest, largest difference "
                f"{agreed['largest_difference']:.1e} of {agreed['tolerance']:.1e} that rounding explains"
            )
        if point["status"] != "ok":
            lines.append(f"{model}, {point['ranks']} rank(s): {point['status']}: {point['reason']}")
        if point["oversubscribed"]:
            lines.append(f"{model}, {point['ranks']} rank(s) are oversubscribed: for correctness only")
    lines.append(
        "TFLOP/s of all ranks, with attention, and of linear layers alone; over alone: of the same step unexchanged"
    )
    return "\n".join(lines)


def _row(model: str, point: Mapping[str, Any]) -> Iterator[str]:
    words = [model, str(point["ranks"]), str(point["nodes"])]
    if point["status"] == "ok":
        pair, overlap = point["without_communication"], point["overlap_fraction"]
        words += [
            str(point["images"]),
            f"{point['seconds']:.4f}",
            f"{point['seconds_spread']['mad']:.4f}",
            f"{point['images_per_second']:.2f}",
            f"{point['flops_per_second'] / TERA:.4f}",
            f"{point['linear_flops_per_second'] / TERA:.4f}",
            "-" if point["efficiency"] is None else f"{point['efficiency']:.1%}",
            f"{point['exposed_seconds']:.4f}",
            "-" if overlap is None else f"{overlap:.1%}",
            "-" if pair is None else f"{pair['ratio']['median']:.3f}",
        ]
    else:
        words += [point["status"]]
    for word, (_, width) in zip(words, COLUMNS, strict=False):
        yield f"{word:>{width}}"
