"""What AutoMem and its tiers gave here, as tables: trainings with less memory, the largest batch, steps with and without."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dithc.report.documents import read_bench
from dithc.report.words import ABSENT, gib, rounded, with_deviation

RUNS = (
    "Contender",
    "s a step",
    "Slower by",
    "Waits",
    "Process peak",
    "Fast tier, most",
    "Budget",
    "Moved a step",
    "Same training",
)
STEPS = ("Model", "Contender", "s a step", "Over the first", "Page faults a step", "Same losses")
BATCHES = ("Contender", "Largest batch", "Tried")


def read_automem(path: Path) -> dict[str, Any]:
    """Read a result of `dithc bench automem`; UserError if the file is no such result."""
    return read_bench(path, "automem", part="parts", what="measurement of AutoMem")


def automem_parts(result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a titled table per measured part, and the conditions; empty without a result."""
    if not result:
        return {"tables": [], "conditions": {}}
    settings = result["settings"]
    what = f"{settings['model'].removeprefix('DiT-')}, batch {settings['batch']}, {settings['dtype']}"
    return {
        "tables": [_table(name, part, settings, what) for name, part in result["parts"].items()],
        "conditions": {
            "runs": f"{settings['rounds']} of each, in turns; {settings['steps']} steps on the clock in each",
            "steps": f"{settings['repeats']} of each, in turns inside one process",
            **{f"limit ({name})": part["how"] for name, part in result["parts"].items() if "how" in part},
            **result["counted"],
        },
    }


def _table(name: str, part: Mapping[str, Any], settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    if name == "budget":
        title = (
            f"{what}: a fast tier of {settings['budget']:.0%} of the {gib(part['takes_bytes'])} that it takes unmanaged"
        )
    elif name == "file":
        share = f"{settings['limit']:.0%} of the unmanaged peak"
        title = f"{what}: a process of {gib(part['limit_bytes'])}, {share}, with a file tier"
    elif name == "largest-batch":
        ratio = "" if part["ratio"] is None else f": {rounded(part['ratio'], digits=3)} times the images"
        title = f"{what.split(',')[0]}, largest batch in {gib(part['limit_bytes'])}{ratio}"
    elif name == "pool":
        title = f"Outputs from the pool, and from torch's allocator; batch {settings['batch']}, {settings['dtype']}"
    else:
        title = f"The cost of AutoMem where everything is resident; batch {settings['batch']}, {settings['dtype']}"
    rows = part["rows"]
    if name in ("budget", "file"):
        return {"title": title, "head": list(RUNS), "rows": [_run(row) for row in rows]}
    if name == "largest-batch":
        return {"title": title, "head": list(BATCHES), "rows": [_largest(row) for row in rows]}
    return {"title": title, "head": list(STEPS), "rows": [_step(row) for row in rows]}


def _run(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["name"], {"oom": "out of memory"}.get(row["status"], row["status"]), *[ABSENT] * (len(RUNS) - 2)]
    steps, same = row.get("per_step", {}), row.get("losses_identical")
    moved = steps.get("loaded_bytes", 0) + steps.get("offloaded_bytes", 0)
    return [
        row["name"],
        with_deviation(row["seconds"]),
        with_deviation(row.get("slower")),
        ABSENT if "stall_share" not in row else f"{row['stall_share']['median']:.1%}",
        gib(row["peak_rss_bytes"]),
        gib(row.get("peak_fast_bytes")) + ("" if row.get("within_budget", True) else ", EXCEEDED"),
        gib(row.get("budget_bytes")),
        gib(moved) if steps else ABSENT,
        ABSENT if same is None else "yes, bit for bit" if same else "NO",
    ]


def _largest(row: Mapping[str, Any]) -> list[str]:
    tried = ", ".join(f"{one['batch']} {'fits' if one['status'] == 'ok' else 'does not'}" for one in row["probes"])
    return [row["name"], str(row["largest"]), tried]


def _step(row: Mapping[str, Any]) -> list[str]:
    return [
        row["model"].removeprefix("DiT-"),
        row["name"],
        with_deviation(row["seconds"]),
        with_deviation(row["over_first"]),
        f"{row['page_faults']:,.0f}",
        "yes, bit for bit" if row["losses_identical"] else "NO",
    ]
