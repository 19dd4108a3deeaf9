"""What AutoMem and its tiers give, for a terminal: a paragraph a part."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

GIB = 1 << 30
# Statuses of a process that SIGKILL ended, by itself and through its launcher.
KILLS = ("status -9", "status 137")


def automem_table(result: Mapping[str, Any]) -> str:
    """Format the measured parts in order."""
    settings = result["settings"]
    what = f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}"
    said = {
        "budget": f"a fast tier of {settings['budget']:.0%} of what {what} takes unmanaged",
        "file": f"{what} in {settings['limit']:.0%} of its unmanaged peak, with a file tier",
        "largest-batch": f"the largest batch of {settings['model']}, {settings['dtype']}, in {settings['memory_gib']:g} GiB",
        "pool": f"outputs from the pool, and from torch's allocator; batch {settings['batch']}, {settings['dtype']}",
        "resident": f"the cost of AutoMem where everything is resident; batch {settings['batch']}, {settings['dtype']}",
    }
    lines = []
    for name, part in result["parts"].items():
        lines += [f"{name}: {said[name]}", *("  " + line for line in PARTS[name](part))]
    return "\n".join(lines)


def _runs(part: Mapping[str, Any]) -> Iterator[str]:
    if "takes_bytes" in part:
        yield f"it takes {part['takes_bytes'] / GIB:.2f} GiB, budget {part['budget_bytes'] / GIB:.2f} GiB"
    if "limit_bytes" in part:
        yield f"limit {part['limit_bytes'] / GIB:.2f} GiB: {part['how']}"
    yield f"{'':<14}{'s a step':>10}{'+- MAD':>9}{'peak GiB':>10}{'fast GiB':>10}{'stall':>8}{'slower':>9}{'moved GiB':>11}"
    for row in part["rows"]:
        if row["status"] != "ok":
            yield f"{row['name']:<14}{'-' if row['status'] == 'oom' else row['status']:>10}"
            yield f"{row['name']}: {_end(row)}"
            continue
        words = [
            f"{row['seconds']['median']:.3f}",
            f"{row['seconds']['mad']:.3f}",
            f"{row['peak_rss_bytes'] / GIB:.2f}",
        ]
        words += [_gib(row, "peak_fast_bytes"), _share(row.get("stall_share")), _share(row.get("slower")), _moved(row)]
        widths = (10, 9, 10, 10, 8, 9, 11)
        yield f"{row['name']:<14}" + "".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))
    for row in part["rows"]:
        if "limit_bytes" in part and row["status"] == "ok":
            peak, limit = row["peak_rss_bytes"] / GIB, part["limit_bytes"] / GIB
            yield f"{row['name']}: at most {peak:.2f} GiB resident, code and pages of files among them; the limit is {limit:.2f}"
        if "within_budget" in row:
            word = "never exceeded" if row["within_budget"] else "EXCEEDED"
            yield f"{row['name']}: the budget was {word} ({row['peak_fast_bytes']} of {row['budget_bytes']} bytes)"
        if "losses_identical" in row:
            same = "identical to" if row["losses_identical"] else "NOT THOSE of"
            yield f"{row['name']}: losses and gradient norms {same} the unmanaged training"


def _end(row: Mapping[str, Any]) -> str:
    """Return why a run has no numbers; the log of a killed one does not explain memory."""
    if row["status"] != "oom":
        return str(row["reason"])
    status, _, said = row["reason"].partition("; ")
    return f"killed for lack of memory, {status}" if status in KILLS else f"out of memory: {said or status}"


def _largest(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"limit {part['limit_bytes'] / GIB:.2f} GiB: {part['how']}"
    for row in part["rows"]:
        tries = ", ".join(f"{one['batch']} {one['status']}" for one in row["probes"])
        most = " (the most that was tried)" if row["largest"] == part["most"] else ""
        yield f"{row['name']:<14}{row['largest']:>6}{most}; tried: {tries}"
    if part["ratio"] is not None:
        yield f"{part['ratio']:.2f} x"


def _steps(part: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'':<10}{'':<30}{'s a step':>10}{'+- MAD':>9}{'over first':>12}{'+- MAD':>8}{'faults a step':>15}{'losses':>11}"
    for row in part["rows"]:
        ratio = row["over_first"]
        yield (
            f"{row['model'].removeprefix('DiT-'):<10}{row['name']:<30}{row['seconds']['median']:>10.4f}"
            f"{row['seconds']['mad']:>9.4f}{ratio['median']:>12.3f}{ratio['mad']:>8.3f}{row['page_faults']:>15,.0f}"
            f"{'identical' if row['losses_identical'] else 'OTHER':>11}"
        )
        if row.get("resident") is False:
            yield f"{row['name']}: its plan moves something: the budget is too small for this comparison"


def _gib(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name] / GIB:.2f}" if row.get(name) is not None else "-"


def _share(value: Mapping[str, Any] | None) -> str:
    return "-" if value is None else f"{value['median']:.1%}"


def _moved(row: Mapping[str, Any]) -> str:
    steps = row.get("per_step")
    return "-" if steps is None else f"{(steps.get('loaded_bytes', 0) + steps.get('offloaded_bytes', 0)) / GIB:.2f}"


PARTS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "budget": _runs,
    "file": _runs,
    "largest-batch": _largest,
    "pool": _steps,
    "resident": _steps,
}
