"""Summary of `dithc bench scaling`: weak or strong scaling."""

from collections.abc import Iterator, Mapping
from typing import Any

from dithc.core.measurements import ABSENT, Measurement, Table, percent, rounded, short
from dithc.core.units import TERA

HEAD = [
    *("Model", "Ranks", "Nodes", "Images", "s per step", "Images/s", "TFLOP/s", "Linear", "Efficiency", "Exposed s"),
    *("Overlap", "Over no exchange"),
]


def scaling_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the points, the agreement of losses, and failures."""
    settings = result["settings"]
    images = "images per rank" if settings["mode"] == "weak" else "images over all ranks"
    points = [(curve["model"].removeprefix("DiT-"), point) for curve in result["curves"] for point in curve["points"]]
    title = f"{settings['mode'].capitalize()} scaling"
    return Measurement(
        title=f"{title}, {settings['strategy']}, {settings['dtype']}, {settings['batch']} {images}, "
        f"medians of {settings['rounds']} runs of {settings['steps']} steps",
        tables=[Table(title=title, head=HEAD, rows=[_row(model, point) for model, point in points])],
        notes=[
            *(note for model, point in points for note in _notes(f"{model}, {point['ranks']} rank(s)", point)),
            "TFLOP/s of all ranks, including attention; linear: linear layers alone; over no exchange: the step over the "
            "same step without communication",
        ],
    )


def _row(model: str, point: Mapping[str, Any]) -> list[str]:
    cells = [model, f"{point['ranks']:,}", f"{point['nodes']:,}"]
    if point["status"] != "ok":
        return [*cells, point["status"], *[ABSENT] * (len(HEAD) - len(cells) - 1)]
    pair, deviation = point["no_communication_baseline"], point["seconds_spread"]["mad"]
    return [
        *(*cells, f"{point['images']:,}", f"{short(point['seconds'])} ± {float(format(deviation, '.1g')):g}"),
        *(short(point["images_per_second"]), short(point["flops_per_second"] / TERA)),
        *(
            short(point["linear_flops_per_second"] / TERA),
            percent(point["efficiency"]),
            short(point["exposed_seconds"]),
        ),
        *(percent(point["overlap_fraction"]), rounded(pair["ratio"]["median"]) if pair else ABSENT),
    ]


def _notes(name: str, point: Mapping[str, Any]) -> Iterator[str]:
    if check := point.get("same_training"):
        verdict = "the same losses and gradient norms as" if check["same"] else "OTHER LOSSES OR GRADIENT NORMS than"
        yield (
            f"{name}: {verdict} with the fewest ranks, largest difference {check['largest_difference']:.1e}, "
            f"tolerance for rounding {check['tolerance']:.1e}"
        )
    if point["status"] != "ok":
        yield f"{name}: {point['status']}: {point['reason']}"
    if point["oversubscribed"]:
        yield f"{name} are oversubscribed: for correctness only"
