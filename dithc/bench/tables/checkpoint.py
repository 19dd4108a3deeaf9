"""The cost of a checkpoint beside a training, for a terminal."""

from collections.abc import Mapping
from statistics import median
from typing import Any

GIB = 1 << 30


def checkpoint_table(result: Mapping[str, Any]) -> str:
    """A line for each save, then the medians of the ratios."""
    settings, rounds = result["settings"], result["saves"]
    lines = [
        f"{settings['model']['preset']}, batch {settings['batch']}, {settings['dtype']}, strategy {settings['strategy']}, "
        f"{result['ranks']} rank(s) x {result['threads']} thread(s); seconds",
        f"{'save':>9}{'stalled':>9}{'steps':>7}{'during':>9}{'without':>9}{'ratio':>8}{'with stall':>12}",
    ]
    for row in rounds:
        if not row["during"]:
            lines.append(f"{row['save']:>9.2f}{row['stalled']:>9.3f}      0  written before a step was made")
            continue
        lines.append(
            f"{row['save']:>9.2f}{row['stalled']:>9.3f}{len(row['during']):>7}{median(row['during']):>9.3f}"
            f"{median(row['without']):>9.3f}{row['ratio']:>8.3f}{row['whole_ratio']:>12.3f}"
        )
    for name, what in (("ratio", "a step during a save over one without"), ("whole_ratio", "the same with the stall")):
        if ratios := [row[name] for row in rounds if row[name] is not None]:
            lines.append(f"{what}: median {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    return "\n".join(lines)
