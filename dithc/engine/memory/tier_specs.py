"""Specification of a process's memory tiers, and the pure rule that derives it from machine and settings."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dithc.core.logging import user_error
from dithc.core.units import GIB
from dithc.engine.hardware import Machine

# Types of memory of a machine, fastest first.
FASTEST_FIRST = ("on-package", "ddr", "expander")
# Share of each type of memory for its tier, as numerator and denominator. On-package memory leaves the rest to the
# system, for example for page tables; ordinary memory also to memory outside of tiers (Python, libraries, small outputs,
# page cache).
USABLE_ON_PACKAGE, USABLE = (15, 16), (3, 4)

TierKind = Literal["on-package", "ddr", "file"]
PageKind = Literal["hugetlb", "transparent", "none", "file"]


@dataclass(frozen=True, kw_only=True)
class TierSpec:
    """Specification of a tier.

    Attributes:
        kind: on-package memory, ordinary memory (including expanders), or a file.
        budget_bytes: limit of physical bytes, in use and idle; None for no limit. For a file: its size.
        nodes: memory nodes to bind to, in the order of core clusters; () for the clusters' own nodes.
        folder: folder of a file tier.
    """

    name: str
    kind: TierKind
    budget_bytes: int | None
    nodes: tuple[int, ...] = ()
    folder: Path | None = None


def tier_specs(
    machine: Machine,
    *,
    fast_budget_bytes: int | None = None,
    spill_folder: Path | None = None,
    file_bytes: int | None = None,
    ranks: int = 1,
) -> list[TierSpec]:
    """Return the tiers of one of `ranks` processes that share a machine's memory evenly; a pure function.

    Every tier except the last has a budget. With a budget and a single type of memory, the excess goes to the file;
    without a file, to the same memory without a budget.

    Args:
        machine: discovered memory tiers, and the limit of its control group.
        fast_budget_bytes: hard budget of this process in the fastest tier; None for its share.
        spill_folder, file_bytes: location and size of this process's file tier; None for no file.

    Raises:
        UserError: a budget beyond the tier, or a file below memory of unknown size without a budget.
    """
    tiers = [tier for kind in FASTEST_FIRST for tier in machine.tiers if tier.kind == kind]
    is_bound = len({tier.kind for tier in tiers}) > 1
    limit = machine.limits.memory_limit_bytes
    shares = [min(tier.memory_bytes, limit or tier.memory_bytes) // ranks for tier in tiers]
    specs = [_spec(tier.kind, tier.nodes if is_bound else (), share) for tier, share in zip(tiers, shares, strict=True)]
    specs = specs or [TierSpec(name="memory", kind="ddr", budget_bytes=None)]
    if spill_folder is not None:
        specs.append(TierSpec(name="file", kind="file", budget_bytes=file_bytes, folder=spill_folder))
    if fast_budget_bytes is not None:
        if tiers and fast_budget_bytes > (largest := tiers[0].memory_bytes // ranks):
            total = f"the node has {tiers[0].memory_bytes / GIB:.2f} GiB of {tiers[0].kind} memory"
            raise user_error(
                "budget of the fastest memory",
                got=f"{fast_budget_bytes / GIB:.2f} GiB for each of {ranks} rank(s) of a node",
                expected=f"at most {largest / GIB:.2f} GiB: {total}",
                fix="lower fast_memory_gib",
            )
        specs += specs if len(specs) == 1 else []
        specs[0] = replace(specs[0], name=f"budgeted {specs[0].name}", budget_bytes=fast_budget_bytes)
    if specs[-1].kind == "ddr":
        specs[-1] = replace(specs[-1], budget_bytes=None)
    if any(spec.budget_bytes is None for spec in specs[:-1]):
        raise user_error(
            f"file tier of memory in {spill_folder}",
            got="memory of unknown size above it without a budget, so the file would never be used",
            expected="a budget",
            fix="set fast_memory_gib, or remove the file tier",
        )
    return specs


def _spec(kind: str, nodes: tuple[int, ...], memory_bytes: int) -> TierSpec:
    """Return a memory tier of the machine. Without a budget, the system would silently use other memory."""
    numerator, denominator = USABLE_ON_PACKAGE if kind == "on-package" else USABLE
    tier: TierKind = "on-package" if kind == "on-package" else "ddr"
    return TierSpec(name=kind, kind=tier, budget_bytes=memory_bytes * numerator // denominator, nodes=nodes)


def describe(spec: TierSpec) -> str:
    budget = "unlimited" if spec.budget_bytes is None else f"{spec.budget_bytes / GIB:.2f} GiB"
    nodes = f" on nodes {', '.join(map(str, spec.nodes))}" if spec.nodes else ""
    return f"{spec.name}: {budget}{nodes}{f' in {spec.folder}' if spec.folder else ''}"
