"""Table of the result of `bench patch`."""

from collections.abc import Iterator, Mapping
from typing import Any


def patch_table(result: Mapping[str, Any]) -> str:
    """Format one line per model and type: step times, speedups, gradient errors, served calls."""
    settings = result["settings"]
    head = (
        f"a training step, batch {settings['batch']}, {settings['threads']} thread(s), medians of "
        f"{settings['repeats']} rounds"
    )
    ways = [*settings["compare"], "patched"]
    columns = f"{'model':<21}{'type':<10}" + "".join(f"{way:>10}" for way in ways)
    columns += "".join(f"{f'over {way}':>22}" for way in settings["compare"]) + f"{'off: eager, patched':>22}  served"
    return "\n".join([head, columns, *(line for case in result["cases"] for line in _lines(case, ways))])


def _lines(case: Mapping[str, Any], ways: list[str]) -> Iterator[str]:
    first = f"{case['model']:<21}{case['dtype']:<10}"
    if case["status"] == "not here":
        yield f"{first}not here: {case['why']}"
        return
    seconds = "".join(
        f"{case['seconds'][way]['median']:>10.3f}" if way in case["seconds"] else f"{'-':>10}" for way in ways
    )
    if case["status"] == "ok":
        gains = "".join(_gain(case["speedup_of_patched_over"].get(way)) for way in ways if way != "patched")
        off, rows = case["gradients_off"], case["served"]
        served = f"{sum(row['served'] for row in rows)} of {len(rows)} types of calls"
        yield f"{first}{seconds}{gains}{off['eager']:>11.1e}{off['patched']:>11.1e}  {served}"
    else:
        yield f"{first}{seconds}"
    for way, why in case["failures"].items():
        yield f"{'':<21}{way}: {why}"


def _gain(found: Mapping[str, Any] | None) -> str:
    return f"{'-':>22}" if found is None else f"{found['median']:>13.2f} +- {found['mad']:<5.2f}"
