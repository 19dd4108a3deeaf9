"""Check of the memory tiers of a training run in one process, without budget and file tier."""

from collections.abc import Mapping
from pathlib import Path

from dithc.doctor.finding import Finding
from dithc.hardware import Machine
from dithc.log import UserError
from dithc.memory import Tiers, specs_of

GIGA, GIB = 1e9, 1 << 30


def memory_tiers(machine: Machine, _: Path) -> list[Finding]:
    """Report each tier, with the measured page size and copy rate."""
    sizes: dict[str, int] = {tier.kind: tier.memory_bytes for tier in machine.tiers}
    try:
        tiers = Tiers(specs_of(machine))
    except UserError as error:
        fix = "reinstall the package; see the cause in topic `kernels`"
        return [Finding("warn", "memory tiers", str(error).splitlines()[0], fix=fix)]
    facts = {
        tier.spec.name: {
            "kind": tier.spec.kind,
            "nodes": tier.spec.nodes,
            "bytes": tier.spec.budget_bytes or sizes.get(tier.spec.name),
            "pages": tier.huge_pages,
            "copy_bytes_per_second": tier.copy_bytes_per_second,
        }
        for tier in tiers
    }
    tiers.close()
    return [Finding("ok", "memory tiers", "; ".join(_line(n, f) for n, f in facts.items()), facts=facts)]


def _line(name: str, fact: Mapping[str, object]) -> str:
    size, rate, nodes = fact["bytes"], fact["copy_bytes_per_second"], fact["nodes"]
    assert isinstance(rate, float)
    assert isinstance(nodes, tuple)
    size_text = f"{size / GIB:.1f} GiB" if isinstance(size, int) else "of unknown size"
    where = f" on node(s) {', '.join(map(str, nodes))}" if nodes else ""
    pages = "no huge pages" if fact["pages"] == "none" else f"{fact['pages']} huge pages"
    return f"{name} {size_text}{where}, {pages}, copies at {rate / GIGA:.1f} GB/s"
