"""Summary of `dithc bench automem`: training with less memory, and the cost of AutoMem."""

from collections.abc import Iterator, Mapping
from typing import Any

from dithc.core.measurements import ABSENT, Measurement, Table, gib, percent, with_deviation

RUNS = [
    *("Variant", "s per step", "Slower by", "Stall", "Process peak", "Fast tier peak", "Budget", "Moved per step"),
    "Same losses",
]
STEPS = ["Model", "Variant", "s per step", "Over the first", "Page faults per step", "Same losses"]
# Statuses of a process that SIGKILL ended, directly and through its launcher.
KILLS = ("status -9", "status 137")


def automem_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the measured parts in order."""
    settings, parts = result["settings"], result["parts"]
    return Measurement(
        title=f"AutoMem, {settings['model']}, batch {settings['batch']}, {settings['dtype']}",
        tables=[_table(name, part, settings) for name, part in parts.items()],
        notes=[note for part in parts.values() for note in _notes(part)],
        conditions={
            "runs": f"{settings['rounds']} per variant, interleaved; {settings['steps']} timed steps each",
            "steps": f"{settings['step_rounds']} per variant, interleaved within one process",
            **{f"limit ({name})": part["how"] for name, part in parts.items() if "how" in part},
            **result["counted"],
        },
    )


def _table(name: str, part: Mapping[str, Any], settings: Mapping[str, Any]) -> Table:
    network = f"{settings['model'].removeprefix('DiT-')}, batch {settings['batch']}, {settings['dtype']}"
    rows = part["rows"]
    if name == "budget":
        share = f"{settings['fast_memory_fraction']:.0%} of the {gib(part['takes_bytes'])} that it uses unmanaged"
        return Table(title=f"{network}: a fast tier of {share}", head=RUNS, rows=[_run(row) for row in rows])
    if name == "file":
        share = f"{settings['memory_limit_fraction']:.0%} of the unmanaged peak"
        title = f"{network}: a process of {gib(part['limit_bytes'])}, {share}, with a file tier"
        return Table(title=title, head=RUNS, rows=[_run(row) for row in rows])
    title = "Outputs from the pool, and from the allocator of PyTorch"
    title = title if name == "pool" else "The cost of AutoMem if everything is resident"
    title += f"; batch {settings['batch']}, {settings['dtype']}"
    return Table(title=title, head=STEPS, rows=[_step(row) for row in rows], texts=2)


def _run(row: Mapping[str, Any]) -> list[str]:
    if row["status"] != "ok":
        return [row["name"], {"oom": "out of memory"}.get(row["status"], row["status"]), *[ABSENT] * (len(RUNS) - 2)]
    steps = row.get("per_step")
    return [
        *(row["name"], with_deviation(row["seconds"]), with_deviation(row.get("slower"))),
        percent(row.get("stall_share", {}).get("median")),
        *(gib(row[name]) if name in row else ABSENT for name in ("peak_rss_bytes", "peak_fast_bytes", "budget_bytes")),
        ABSENT if steps is None else gib(steps.get("loaded_bytes", 0) + steps.get("offloaded_bytes", 0)),
        _agreement(row.get("losses_identical")),
    ]


def _step(row: Mapping[str, Any]) -> list[str]:
    ratio, faults = with_deviation(row["over_first"]), f"{row['page_faults']:,.0f}"
    same = _agreement(row["losses_identical"])
    return [row["model"].removeprefix("DiT-"), row["name"], with_deviation(row["seconds"]), ratio, faults, same]


def _agreement(identical: bool | None) -> str:
    return ABSENT if identical is None else "bitwise" if identical else "NO"


def _notes(part: Mapping[str, Any]) -> Iterator[str]:
    for row in part["rows"]:
        if row.get("status", "ok") != "ok":
            yield f"{row['name']}: {_failure_reason(row)}"
        elif "limit_bytes" in part and "peak_rss_bytes" in row:
            peak, limit = gib(row["peak_rss_bytes"]), gib(part["limit_bytes"])
            yield f"{row['name']}: at most {peak} resident, including code and pages of files; the limit is {limit}"
        if "within_budget" in row:
            verdict = "never exceeded" if row["within_budget"] else "EXCEEDED"
            yield f"{row['name']}: the budget was {verdict} ({row['peak_fast_bytes']} of {row['budget_bytes']} bytes)"
        if row.get("resident") is False:
            yield f"{row['name']}: its plan moves data: the budget is too small for this comparison"


def _failure_reason(row: Mapping[str, Any]) -> str:
    """Return why a run has no numbers; the log of a killed process does not explain memory."""
    if row["status"] != "oom":
        return str(row["reason"])
    status, _, text = row["reason"].partition("; ")
    return f"killed for lack of memory, {status}" if status in KILLS else f"out of memory: {text or status}"
