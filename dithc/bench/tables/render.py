"""Selection of the summary by the type of a result; summaries of operators and of the search for products."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dithc.bench.step import loss_curves
from dithc.bench.tables.automem import automem_summary
from dithc.bench.tables.scaling import scaling_summary
from dithc.bench.tables.step import step_summary, stepwise_summary
from dithc.bench.tables.strategies import strategies_summary
from dithc.bench.time_to_quality import quality_summary
from dithc.core.measurements import Measurement, Table, percent, rounded, short, with_deviation
from dithc.core.units import GIGA, MIB

MICRO = 1e-6


EQUAL_WITHIN = 0.03  # the margin of a tuning, too
MAX_LISTED = 8


def summary(result: Mapping[str, Any]) -> Measurement:
    """Return the summary of a benchmark result."""
    return SUMMARIES[result["bench"]](result)


def ops_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the operators, the means of the matrix products, and the ceilings."""
    settings, cache = result["settings"], result["out_of_cache"]
    head = ["Operator", "Type", "Over", "Seconds", "GFLOP/s", "GB/s", "Share", "Seconds of other", "Share", "Speedup"]
    notes = [*(_mean(group) for group in result["groups"]), _slower(result["cases"])]
    for name, rate in result["ceilings"].items():
        unit = "GB/s read and written" if name == "copy" else "GFLOP/s"
        notes.append(f"ceiling: {name} {rate['median'] / GIGA:.1f} ± {rate['mad'] / GIGA:.1f} {unit}")
    barrier = {name: result["team"]["barrier_seconds"][name] / MICRO for name in ("median", "mad")}
    notes.append(f"{result['team']['description']}; barrier {with_deviation(barrier)} us")
    if "copy" in result["ceilings"] and not cache["exceeds_cache"]:
        copied, cache_size = cache["copied_bytes"] // MIB, cache["last_level_cache_bytes"] // MIB
        notes.append(f"{copied} MiB copied, the largest cache has {cache_size} MiB: raise --bytes to leave the cache")
    rows = [line for row in result["cases"] for line in _case(row)]
    return Measurement(
        title=f"Operators, {settings['threads']} thread(s), medians of {settings['rounds']} rounds",
        tables=[Table(title="Operators; share: of the ceiling that limits them", head=head, rows=rows, texts=3)],
        notes=notes,
    )


def _case(row: Mapping[str, Any]) -> Iterator[list[str]]:
    hcops, is_copy = row["variants"]["hcops"], "bytes" in row["work"]
    rate = f"{hcops['per_second'] / GIGA:.1f}"
    label = row["name"] if row["group"] == "memory-bound" else f"{row['group']} {row['name']}"
    for name, speedup in row["speedup_of_hcops_over"].items():
        baseline = row["variants"][name]
        yield [
            *(label, row["dtype"], name, with_deviation(hcops["seconds"])),
            *("" if is_copy else rate, rate if is_copy else "", _share(hcops)),
            *(rounded(baseline["seconds"]["median"], digits=4), _share(baseline), with_deviation(speedup, digits=3)),
        ]


def _mean(group: Mapping[str, Any]) -> str:
    shares = group["share_of_ceiling"]
    share = f"{shares['hcops']:.1%} of FMA peak (eager {shares['eager']:.1%}), " if shares else ""
    speedup = group["speedup_of_hcops_over"]["eager"]
    return f"mean of {group['cases']} {group['group']} {group['dtype']} {group['kind']}: {share}{speedup:.2f} × eager"


def _slower(cases: Sequence[Mapping[str, Any]]) -> str:
    """Count the passes that are slower than PyTorch by more than a difference of two equal implementations."""
    ratios = [
        (ratio, f"{row['group']} {row['name']} {row['dtype']} {part} {ratio:.2f}")
        for row in cases
        for part, ratio in row["speedup_of_hcops_over"].get("eager", {"parts": {}})["parts"].items()
    ]
    slower = [text for ratio, text in sorted(ratios) if ratio < 1 - EQUAL_WITHIN]
    listed = ", ".join(slower[:MAX_LISTED]) + (", ..." if len(slower) > MAX_LISTED else "")
    return f"slower than eager by more than {EQUAL_WITHIN:.0%}: {len(slower)} of {len(ratios)} passes" + (
        f": {listed}" if slower else ""
    )


def _share(variant: Mapping[str, Any]) -> str:
    return percent((variant["share_of_ceiling"] or {}).get("median"))


def tune_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize the tuned products."""
    key, products = result["key"], result["products"]
    head = ["Layout", "Type", "Choice", "m", "n", "k", "Default ms", "Gain", "Gain of torch"]
    rows = [
        [
            *(str(row[name]) for name in ("layout", "dtype", "choice", "m", "n", "k")),
            short(row["default_seconds"] * 1e3),
            *(f"{1 / row[name]:.2f}" for name in ("ratio", "torch_ratio")),
        ]
        for row in products
    ]
    title = f"{result['path']}: {key['cpu']}, {key['threads']} thread(s), {key['isa']}, {len(products)} product(s)"
    return Measurement(title=title, tables=[Table(title="Tuned products", head=head, rows=rows, texts=3)])


SUMMARIES: Mapping[str, Callable[[Mapping[str, Any]], Measurement]] = {
    "automem": automem_summary,
    "curves": loss_curves.curves_summary,
    "ops": ops_summary,
    "quality": quality_summary,
    "scaling": scaling_summary,
    "step": step_summary,
    "stepwise": stepwise_summary,
    "strategies": strategies_summary,
    "tune": tune_summary,
}
