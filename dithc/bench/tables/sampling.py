"""Summary of `dithc bench sampling`: one image on one rank and on several ranks."""

from collections.abc import Mapping
from typing import Any

from dithc.core.measurements import ABSENT, Measurement, Table, rounded, with_deviation
from dithc.core.units import MIB

BASE, SEPARATE = "one-rank", "apart"  # variants in dithc.bench.sampling
RATIOS = {
    "speedup": "Speedup over one rank",
    "over_side_by_side": "Of ranks without exchange",
    "over_all_cores": "Over one process with all cores",
}
HEAD = ["Variant", "Output", "Seconds", *RATIOS.values()]


def sampling_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize images, decoders and sampling steps, and describe the variants."""
    settings, ranks, images, decoding = result["settings"], result["ranks"], result["images"], result["decoding"]
    tables = []
    if images:
        title = f"Image of {images['steps']} steps, not decoded, {_cell(images)}"
        tables.append(_table(title, images["rows"], {"Images/s": lambda row: rounded(row["images_per_second"])}))
    tables += [
        _table(
            f"Image of {one['size']:,} px, decoded by {one['decoder']} of width {one['width']}", one["rows"], DECODING
        )
        for one in decoding["decoders"]
        if one["status"] == "ok"
    ]
    for cell in result["cells"]:
        step = "guided step" if cell["guidance"] != 1 else "network evaluation"
        tables.append(_table(f"One {step}, {_cell(cell)}", cell["rows"], {"Sent MiB": _sent}))
    variants = [[one["name"], one["description"]] for one in (*result["variants"], *decoding["variants"])]
    tables.append(Table(title="Variants", head=["Variant", "Description"], rows=variants, texts=2))
    return Measurement(
        title=f"Sampling, {settings['model']}, {ranks['ranks']} ranks × {ranks['cpus']} thread(s), medians of "
        f"{settings['rounds']} interleaved rounds; speedup: over one rank with {ranks['cpus']} thread(s)",
        tables=tables,
        notes=[
            *(f"{one['decoder']}: {one['reason']}" for one in decoding["decoders"] if one["status"] != "ok"),
            "Every output of every rank was compared with the output of one rank. Ranks without exchange are an upper bound. "
            "Peak MiB is the largest of the ranks while decoding, above the memory before. A cache gives an approximate image; "
            "with random weights its difference has little meaning, and its time follows the share of blocks that run.",
        ],
        conditions={
            "weights": "random, also of heads and gates",
            "baseline": f"one rank with {ranks['cpus']} thread(s), while the other ranks sleep",
            "load": f"{result['load_average'][0]:.2g} processes on average at the end"
            if "load_average" in result
            else "",
        },
    )


def _table(title: str, rows: list[Mapping[str, Any]], columns: Mapping[str, Any]) -> Table:
    return Table(title=title, head=[*HEAD, *columns], rows=[_row(row, columns) for row in rows], texts=2)


def _row(row: Mapping[str, Any], columns: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["name"], row["reason"], *[ABSENT] * (len(HEAD) + len(columns) - 2)]
    ratios = (with_deviation(row.get(name)) for name in RATIOS)
    values = (value(row) for value in columns.values())
    return [row["name"], describe_comparison(row), with_deviation(row["seconds"]), *ratios, *values]


def describe_comparison(row: Mapping[str, Any]) -> str:
    """Describe how an output compares with the output of one rank."""
    difference = f"{row['difference']:.1e} of the largest number"
    if row["name"] == BASE:
        return "reference"
    if row["name"] == SEPARATE:
        return f"another image, {difference} apart"
    if not row.get("within_tolerance", True):
        return f"DIFFERS from one rank: {difference} apart"
    return "equal to the bit" if row["equal"] else f"within {difference}"


def _cell(cell: Mapping[str, Any]) -> str:
    guided = f"guidance {cell['guidance']:g}" if cell["guidance"] != 1 else "not guided"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def _sent(row: Mapping[str, Any]) -> str:
    counts = list(row["sent"].values())
    return ABSENT if None in counts else rounded(sum(counts) / MIB)


DECODING = {
    "Sent MiB": _sent,
    "Peak MiB": lambda row: rounded(max(row["peak_bytes"]) / MIB) if row.get("peak_bytes") else ABSENT,
    "Of one rank": lambda row: rounded(row.get("peak_over_one_rank")),
}
