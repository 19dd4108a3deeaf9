"""Check of the memory tiers of a training run in one process, without budget and file tier."""

from pathlib import Path
from typing import Any

from dithc.core.logging import UserError
from dithc.engine.doctor.finding import CheckResult
from dithc.engine.hardware import Machine
from dithc.engine.memory import Tiers, tier_specs

GIGA, GIB = 1e9, 1 << 30


def memory_tiers(machine: Machine, _: Path) -> list[CheckResult]:
    """Report each tier, with the measured page size and copy rate."""
    sizes: dict[str, int] = {tier.kind: tier.memory_bytes for tier in machine.tiers}
    try:
        tiers = Tiers(tier_specs(machine))
    except UserError as error:
        fix = "reinstall the package; see the cause in topic `kernels`"
        return [CheckResult("warn", "memory tiers", str(error).splitlines()[0], fix=fix)]
    facts, lines = dict[str, dict[str, Any]](), list[str]()
    for tier in tiers:
        name, nodes, rate = tier.spec.name, tier.spec.nodes, tier.copy_bytes_per_second
        size = tier.spec.budget_bytes or sizes.get(name)
        pages = {"pages": tier.huge_pages, "copy_bytes_per_second": rate}
        facts[name] = {"kind": tier.spec.kind, "nodes": nodes, "bytes": size, **pages}
        size_text = f"{size / GIB:.1f} GiB" if size else "of unknown size"
        where = f" on node(s) {', '.join(map(str, nodes))}" if nodes else ""
        kind = "no" if tier.huge_pages == "none" else tier.huge_pages
        lines.append(f"{name} {size_text}{where}, {kind} huge pages, copies at {rate / GIGA:.1f} GB/s")
    tiers.close()
    return [CheckResult("ok", "memory tiers", "; ".join(lines), facts=facts)]
