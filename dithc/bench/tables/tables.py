"""The results of this room as tables for a terminal."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dithc.bench.collectives import collectives_table
from dithc.bench.patched import patch_table
from dithc.bench.quality import quality_table
from dithc.bench.record import GIGA
from dithc.bench.sampling import sampling_table
from dithc.bench.step import curves
from dithc.bench.tables.automem import automem_table
from dithc.bench.tables.scaling import scaling_table
from dithc.bench.tables.stepwise import stepwise_table
from dithc.bench.tables.strategies import strategies_table

MIB, GIB = 1 << 20, 1 << 30
MICRO = 1e-6


def table(result: Mapping[str, Any]) -> str:
    """Format the result of a benchmark for a terminal."""
    return TABLES[result["bench"]](result)


def ops_table(result: Mapping[str, Any]) -> str:
    """Format each case, then geometric means of the products, then the ceilings."""
    settings = result["settings"]
    head = f"{settings['threads']} thread(s), medians of {settings['repeats']} rounds; share: of the ceiling that holds"
    columns = f"{'operator':<34}{'type':>6}{'seconds':>11}{'+- MAD':>10}{'GFLOP/s':>10}{'GB/s':>8}{'share':>8}"
    lines = [head, columns + f"{'eager':>11}{'share':>8}{'speed-up':>10}{'+- MAD':>8}"]
    lines += [line for row in result["cases"] for line in _case(row)]
    lines += [_mean(group) for group in result["groups"]]
    for name, rate in result["ceilings"].items():
        unit = "GB/s read and written" if name == "copy" else "GFLOP/s"
        lines.append(f"ceiling: {name} {rate['median'] / GIGA:.1f} +- {rate['mad'] / GIGA:.1f} {unit}")
    barrier = result["team"]["barrier_seconds"]
    lines.append(
        f"{result['team']['description']}; barrier {barrier['median'] / MICRO:.2f} +- {barrier['mad'] / MICRO:.2f} us"
    )
    cache = result["out_of_cache"]
    if "copy" in result["ceilings"] and not cache["exceeds_cache"]:
        copied, held = cache["copied_bytes"] // MIB, cache["last_level_cache_bytes"] // MIB
        lines.append(f"note: {copied} MiB copied, the largest cache holds {held} MiB: raise --bytes to leave the cache")
    return "\n".join(lines)


def _case(row: Mapping[str, Any]) -> Iterator[str]:
    """Format a line, and one more for each further contender."""
    ours, is_copy = row["contenders"]["hcops"], "bytes" in row["work"]
    rate = f"{ours['per_second'] / GIGA:.1f}"
    label = row["name"] if row["group"] == "memory-bound" else f"{row['group']} {row['name']}"
    first = (
        f"{label:<34}{row['dtype']:>6}{ours['seconds']['median']:>11.6f}{ours['seconds']['mad']:>10.6f}"
        f"{'' if is_copy else rate:>10}{rate if is_copy else '':>8}{_share(ours):>8}"
    )
    for way, speedup in row["speedup_of_hcops_over"].items():
        other = row["contenders"][way]
        name = "" if way == "eager" else f"  ({way})"
        yield (
            f"{first}{other['seconds']['median']:>11.6f}{_share(other):>8}"
            f"{speedup['median']:>10.2f}{speedup['mad']:>8.2f}{name}"
        )
        first = " " * len(first)


def _mean(group: Mapping[str, Any]) -> str:
    shares = group["share_of_ceiling"]
    share = f"{shares['hcops']:.1%} of FMA peak (eager {shares['eager']:.1%}), " if shares else ""
    speedup = group["speedup_of_hcops_over"]["eager"]
    return (
        f"mean of {group['cases']:>2} {group['group']} {group['dtype']} {group['kind']}: {share}{speedup:.2f} x eager"
    )


def _share(contender: Mapping[str, Any]) -> str:
    return f"{contender['share_of_ceiling']['median']:.1%}" if contender["share_of_ceiling"] else "-"


def step_table(result: Mapping[str, Any]) -> str:
    """Format a line per contender, then the ceilings."""
    settings, ceilings = result["settings"], result["ceilings"]
    lines = [
        f"{settings['model']}, batch {settings['batch']}, {settings['dtype']}, {settings['threads']} thread(s), "
        f"median of {settings['repeats']} steps after {settings['warmup']}",
        f"{'contender':<14}{'seconds':>10}{'+- MAD':>9}{'dithc is':>10}{'images/s':>10}"
        f"{'GFLOP/s':>10}{'(linear)':>10}{'of peak':>9}{'of GEMM':>9}{'peak GiB':>10}",
    ]
    for row in result["contenders"]:
        if row["status"] != "ok":
            lines.append(f"{row['name']:<14}{row['status']}: {row['reason']}")
            continue
        rates, speedup, peak = row["gflop_per_second"], row["speedup_of_dithc"], row["peak_above_start_bytes"]
        shares = [
            f"{share['median']:.1%}" if share else "-" for share in (row["share_of_peak"], row["share_of_gemm_ceiling"])
        ]
        faster = f"{speedup['median']:.2f} x" if speedup else "-"
        lines.append(
            f"{row['name']:<14}{row['seconds']['median']:>10.4f}{row['seconds']['mad']:>9.4f}{faster:>10}"
            f"{row['images_per_second']:>10.2f}{rates['training_total']:>10.1f}{rates['training_linear']:>10.1f}"
            f"{shares[0]:>9}{shares[1]:>9}{f'{peak / GIB:.2f}' if peak else '-':>10}"
        )
    fma = f"FMA {ceilings['multiply_add_gflop_per_second']:.1f} GFLOP/s, " if ceilings["multiply_add_unit"] else ""
    lines.append(
        f"ceilings: {fma}PyTorch's matrix product of {ceilings['gemm_size']}^3 {ceilings['gemm_gflop_per_second']:.1f} "
        f"GFLOP/s, copy {ceilings['copy_gb_per_second']:.1f} GB/s read and written"
    )
    if gains := ceilings.get("all_clusters_over_one"):
        words = {"multiply_add": "FMA", "gemm": "PyTorch's matrix product", "copy": "copy"}
        told = [f"{words[name]} {gain['median']:.2f} x +- {gain['mad']:.2f}" for name, gain in gains.items()]
        lines.append(f"all clusters over one, in the same rounds: {', '.join(told)}")
    return "\n".join(lines)


def tune_table(result: Mapping[str, Any]) -> str:
    """Format a line per product."""
    key, rows = result["key"], result["products"]
    lines = [f"{result['path']}: {key['cpu']}, {key['threads']} thread(s), {key['isa']}, {len(rows)} product(s)"]
    lines.append(
        f"{'m':>7}{'n':>7}{'k':>7}  {'layout':<13}{'type':<6}{'default ms':>11}{'gain':>7}{'torch':>7}  choice"
    )
    lines += [
        f"{row['m']:>7}{row['n']:>7}{row['k']:>7}  {row['layout']:<13}{row['dtype']:<6}"
        f"{row['default_seconds'] * 1e3:>11.3f}{1 / row['ratio']:>7.2f}{1 / row['torch_ratio']:>7.2f}  {row['choice']}"
        for row in rows
    ]
    return "\n".join(lines)


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "automem": automem_table,
    "collectives": collectives_table,
    "curves": curves.curves_table,
    "ops": ops_table,
    "patch": patch_table,
    "quality": quality_table,
    "sampling": sampling_table,
    "scaling": scaling_table,
    "step": step_table,
    "stepwise": stepwise_table,
    "strategies": strategies_table,
    "tune": tune_table,
}
