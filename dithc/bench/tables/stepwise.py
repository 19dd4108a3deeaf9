"""The stages of a training that gets one part after the other, for a terminal."""

from collections.abc import Mapping
from typing import Any


def stepwise_table(result: Mapping[str, Any]) -> str:
    """Format a line per stage, then what each adds and what failed."""
    settings, ranks = result["settings"], result["ranks"]
    lines = [
        f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {ranks['ranks']} rank(s) x {ranks['cpus']} "
        f"thread(s), medians of {settings['rounds']} runs of {settings['steps']} steps, in turns",
        f"{'stage':<16}{'s a step':>10}{'+- MAD':>9}{'speed-up':>10}{'+- MAD':>8}"
        f"{'over last':>11}{'+- MAD':>8}{'faults a step':>15}",
    ]
    for row in result["stages"]:
        if row["status"] != "ok":
            lines.append(f"{row['label']:<16}{row['status']:>10}: {row['reason']}")
            continue
        seconds = row["seconds"]
        lines.append(
            f"{row['label']:<16}{seconds['median']:>10.4f}{seconds['mad']:>9.4f}{_ratio(row['speedup'], 10)}"
            f"{_ratio(row['speedup_over_previous'], 11)}{row['page_faults']:>15,.0f}"
        )
    lines += [f"{row['label']}: {row['what']}" for row in result["stages"]]
    measured = [row for row in result["stages"] if row["status"] == "ok"]
    if measured and all(row["speedup"] is None for row in measured):
        lines.append("no speed-up: the baseline was left out, or failed")
    found = [row["largest_difference_of_losses"] for row in measured if row["largest_difference_of_losses"] is not None]
    if found:
        lines.append(f"losses differ by {max(found):.1e} of their size at most: other kernels, other roundings")
    return "\n".join(lines)


def _ratio(numbers: Mapping[str, Any] | None, width: int) -> str:
    """Format a ratio and its deviation; a dash if its base was not measured."""
    if numbers is None:
        return f"{'-':>{width}}{'':>8}"
    return f"{numbers['median']:>{width}.3f}{numbers['mad']:>8.3f}"
