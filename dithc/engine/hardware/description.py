"""YAML description of a machine, which `to_yaml` or a user writes, and which can replace the present machine.

    model_name: LX2
    architecture: aarch64
    flags: [sve, sme]
    clusters:                                       # required; in order, dies numbered through all sockets
    - {socket: 0, die: 0, cores: 0-37}              # one CPU per core
    - {socket: 0, die: 0, cores: 38-75+608-645}     # two CPUs per core: 38 and 608, 39 and 609, ...
    nodes:
    - {index: 0, cpus: 0-37, memory_bytes: 34359738368, distances: [10, 12]}

Further keys are `caches`, `tiers`, `memory_bytes`, `huge_pages`, `limits`, `cluster_rule`, `die_rule`, `offline_cpus`,
`slower_cores` and `network`, with the fields of `Machine`, `Cache`, `NumaNode`, `MemoryTier`, `HugePages`, `Limits` and
`Interconnect`. `nodes` defines the node of each core.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from dithc.core.integrity import require_regular_file
from dithc.core.logging import UserError, user_error
from dithc.engine.hardware.cpu_lists import compact_cores, compact_cpus, expand_cores
from dithc.engine.hardware.limits import Count, Cpus, Limits
from dithc.engine.hardware.machine import (
    Cache,
    Core,
    HugePages,
    Interconnect,
    Machine,
    MemoryTier,
    NumaNode,
    SimulatedCluster,
)
from dithc.engine.hardware.memory_tiers import tiers_of

HEAD = (
    "# A machine, for DITHC_MACHINE_FILE and Python. Sizes in bytes, bandwidths in bytes per second, latencies in ns.\n"
)
EMPTY = Machine(
    model_name="a described machine",
    architecture="unknown",
    cluster_rule="as described",
    huge_pages=HugePages(transparent="absent", pools=()),
    limits=Limits(allowed_cpus=()),
)
CPU_LISTS = ("cpus", "allowed_cpus", "offline_cpus", "slower_cores")
Cores = tuple[tuple[int, ...], ...]


def read(path: str | Path) -> Machine:
    """Read a machine from a YAML file. Missing entries are empty or zero, and every CPU is allowed.

    UserError with the key if the file is unreadable, inconsistent, or has unknown or missing keys.
    """
    return _read_description(Path(path), base=EMPTY)


def stand_in(path: Path, present: Machine) -> Machine:
    """Read a machine with the limits of `present` and its values for missing entries.

    UserError as in `read`, or if the file has none of the CPUs of this process.
    """
    described = replace(_read_description(path, base=present), limits=present.limits, described_by=str(path))
    if not described.visible_cores:
        raise user_error(
            f"{path} cannot replace this machine",
            got=f"CPUs {compact_cpus(tuple(cpu for core in described.cores for cpu in core.cpus))}",
            expected=f"at least one allowed CPU of this process: {compact_cpus(present.limits.allowed_cpus)}",
            fix="unset DITHC_MACHINE_FILE, or correct `cores` of the description",
        )
    return described


def to_yaml(machine: Machine) -> str:
    """Format a machine for `read`, without `described_by`."""
    return HEAD + yaml.safe_dump(_plain(machine), sort_keys=False, default_flow_style=None, width=120)


def _plain(machine: Machine) -> dict[str, Any]:
    socket_of = {core.cluster: core.socket for core in machine.cores}
    clusters = [
        {
            "socket": socket_of[cluster.index],
            "die": cluster.die,
            "cores": compact_cores([machine.cores[core].cpus for core in cluster.cores]),
        }
        for cluster in machine.clusters
    ]
    content = asdict(machine) | {"clusters": clusters}
    for derived in ("num_sockets", "num_dies", "cores", "described_by", *([] if machine.network else ["network"])):
        del content[derived]
    return {key: _as_yaml(key, value) for key, value in content.items()}


def _as_yaml(key: str, value: Any) -> Any:
    if key in CPU_LISTS:
        return compact_cpus(value)
    if isinstance(value, dict):
        return {name: _as_yaml(name, item) for name, item in value.items() if item is not None}
    return [_as_yaml("", item) for item in value] if isinstance(value, list | tuple) else value


class _Cluster(BaseModel, extra="forbid"):
    socket: Count = 0
    die: Count = 0
    cores: Annotated[Cores, BeforeValidator(expand_cores)]


class _Description(BaseModel, extra="forbid"):
    """Keys of the file. Only given keys are used; `_read_description` determines the others."""

    clusters: Annotated[tuple[_Cluster, ...], Field(min_length=1)]
    model_name: str = ""
    architecture: str = ""
    flags: tuple[str, ...] = ()
    cluster_rule: str = ""
    die_rule: str = ""
    caches: tuple[Cache, ...] = ()
    nodes: tuple[NumaNode, ...] = ()
    tiers: tuple[MemoryTier, ...] = ()
    memory_bytes: Count = 0
    huge_pages: HugePages = EMPTY.huge_pages
    limits: Limits = EMPTY.limits
    offline_cpus: Cpus = ()
    slower_cores: Cpus = ()
    network: Interconnect | None = None


def _fault(path: Path, key: str, got: object, expected: str) -> UserError:
    return user_error(f"{path}: {key}", got=got, expected=expected, fix="correct the description")


def _content(path: Path) -> _Description:
    try:
        content = yaml.safe_load(require_regular_file(path).read_text(encoding="utf-8"))
        return _Description.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).removeprefix(".")
        got = {"missing": "no value", "extra_forbidden": "unknown key"}.get(fault["type"], repr(fault["input"]))
        raise _fault(path, key or "the file", got, fault["msg"]) from None
    except OSError as error:
        got = error.strerror or str(error)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        got = " ".join(str(error).split())
    raise user_error(
        f"the machine description {path} cannot be read",
        got=got,
        expected="a YAML file written by `dithc doctor --write-machine`",
        fix="correct the path or the file",
    )


def _read_description(path: Path, *, base: Machine) -> Machine:
    description = _content(path)
    fields: dict[str, Any] = {key: getattr(description, key) for key in description.model_fields_set}
    if "nodes" in fields:
        model_name = fields.get("model_name", base.model_name)
        fields = {"tiers": tiers_of(description.nodes, model_name=model_name)} | fields
        fields = {"memory_bytes": sum(node.memory_bytes for node in description.nodes)} | fields
    cores, clusters = _cores(path, description.clusters, description.nodes if "nodes" in fields else base.nodes)
    if any(core >= len(cores) for core in description.slower_cores):
        slower = compact_cpus(description.slower_cores)
        raise _fault(path, "slower_cores", slower, f"cores below {len(cores)}")
    defaults = {
        "cluster_rule": "as described",
        "die_rule": "as described",
        "limits": Limits(allowed_cpus=tuple(sorted(cpu for core in cores for cpu in core.cpus))),
        "offline_cpus": (),
        "slower_cores": (),
    }
    shape = {"cores": cores, "clusters": clusters, "num_sockets": len({core.socket for core in cores})}
    return replace(base, **(defaults | fields | shape), num_dies=len({core.die for core in cores}))


def _cores(
    path: Path, rows: Sequence[_Cluster], nodes: Sequence[NumaNode]
) -> tuple[tuple[Core, ...], tuple[SimulatedCluster, ...]]:
    node_of = {cpu: node.index for node in nodes for cpu in node.cpus}
    cores, clusters = list[Core](), list[SimulatedCluster]()
    used = set[int]()
    before = _Cluster.model_validate({"cores": 0})
    for index, row in enumerate(rows):
        cluster_key, cpus = f"clusters[{index}]", [cpu for core in row.cores for cpu in core]
        if row.die not in ((before.die, before.die + 1) if index else (0,)):
            raise _fault(path, f"{cluster_key}.die", row.die, "consecutive dies from 0, numbered through all sockets")
        if row.socket < before.socket or (index and row.die == before.die and row.socket != before.socket):
            raise _fault(path, f"{cluster_key}.socket", row.socket, "sockets in order, one per die")
        if doubled := used.intersection(cpus):
            got = f"CPU {min(doubled)}, which is also in another core"
            raise _fault(path, f"{cluster_key}.cores", got, "each CPU once")
        before = row
        used.update(cpus)
        first = len(cores)
        for number, members in enumerate(row.cores, start=first):
            node = node_of.get(members[0])
            cores.append(Core(index=number, cpus=members, cluster=index, die=row.die, socket=row.socket, node=node))
        members = tuple(range(first, len(cores)))
        clusters.append(SimulatedCluster(index=index, die=row.die, node=cores[first].node, cores=members))
    return tuple(cores), tuple(clusters)
