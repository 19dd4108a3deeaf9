"""The comparison of strategies as the paper's table 2 has it, for a terminal."""

from collections.abc import Mapping
from typing import Any

GIB, MIB = 1 << 30, 1 << 20


def strategies_table(result: Mapping[str, Any]) -> str:
    """Format a line per batch and model: seconds, memory and bytes; then cftp over the others."""
    settings, names = result["settings"], [contender["name"] for contender in result["contenders"]]
    heads = [f"{name} {unit}" for unit in ("s", "GiB", "sent MiB") for name in names]
    widths = [max(9, len(head) + 2) for head in heads]
    lines = [
        f"{settings['dtype']}, medians of {settings['rounds']} runs of {settings['steps']} steps; "
        f"{', '.join(_how(contender) for contender in result['contenders'])}; {result['clusters']}",
        f"{'batch':>5}  {'model':<9}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)),
    ]
    for cell in result["cells"]:
        rows = [cell["strategies"][name] for name in names]
        words = [value(row) for value in (_seconds, _memory, _sent) for row in rows]
        line = "".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))
        lines.append(f"{cell['batch']:>5}  {cell['model']:<9}{line}")
    for cell in result["cells"]:
        for name, row in cell["strategies"].items():
            if "cftp_seconds_over" in row:
                ratio, memory = row["cftp_seconds_over"], row["cftp_memory_over"]
                share = f"{memory:.3f}" if memory else "unknown"
                lines.append(
                    f"{cell['model']} {cell['batch']}: cftp / {name} {ratio['median']:.3f} +- {ratio['mad']:.3f} of its time, "
                    f"{share} of its memory"
                )
            elif row["status"] == "failed":
                lines.append(f"{cell['model']} {cell['batch']}: {name} failed: {row['reason']}")
    lines.append("- is out of memory; sent: bytes of one step over TCP and MPI, all ranks together")
    return "\n".join(lines)


def _how(contender: Mapping[str, Any]) -> str:
    return f"{contender['name']} {contender['ranks']} rank(s) x {contender['cpus']} thread(s)"


def _seconds(row: Mapping[str, Any]) -> str:
    return f"{row['seconds']['median']:.3f}" if row["status"] == "ok" else _absent(row)


def _memory(row: Mapping[str, Any]) -> str:
    return f"{row['peak_pss_bytes'] / GIB:.2f}" if row["status"] == "ok" and row["peak_pss_bytes"] else _absent(row)


def _sent(row: Mapping[str, Any]) -> str:
    counted = [row.get(name) for name in ("tcp_bytes", "mpi_bytes", "shared_bytes")]
    known = [value for value in counted if value is not None]
    return f"{sum(known) / MIB:.1f}" if row["status"] == "ok" and known else _absent(row)


def _absent(row: Mapping[str, Any]) -> str:
    return "failed" if row["status"] == "failed" else "-"
