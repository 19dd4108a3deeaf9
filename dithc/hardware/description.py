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
`slower_cores` and `network`, with the fields of `Machine`, `Cache`, `Node`, `Tier`, `HugePages`, `Limits` and
`Network`. `nodes` defines the node of each core.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml

from dithc.hardware.cpu_lists import compact_cores, compact_cpus, expand_cores
from dithc.hardware.limits import Limits, parse_cpu_list
from dithc.hardware.machine import Cache, Cluster, Core, HugePages, Machine, Network, Node, Tier, TierKind
from dithc.hardware.tiers import tiers_of
from dithc.log import UserError, problem
from dithc.sealed import plain

HEAD = "# A machine, for DITHC_MACHINE and Python. Sizes in bytes, bandwidths in bytes per second, latencies in ns.\n"
EMPTY = Machine(
    model_name="a described machine",
    architecture="unknown",
    flags=(),
    num_sockets=0,
    num_dies=0,
    clusters=(),
    cluster_rule="as described",
    cores=(),
    caches=(),
    nodes=(),
    memory_bytes=0,
    huge_pages=HugePages(transparent="absent", pools=()),
    limits=Limits(allowed_cpus=(), cpu_quota=None, memory_limit_bytes=None, memory_available_bytes=None),
)
CPU_LISTS = ("cpus", "allowed_cpus", "offline_cpus", "slower_cores")
T = TypeVar("T")


def read(path: str | Path) -> Machine:
    """Read a machine from a YAML file. Missing entries are empty or zero, and every CPU is allowed.

    Raises:
        UserError: the file is unreadable, inconsistent, or has unknown or missing keys; the title contains the key.
    """
    return _built(_content(Path(path)), base=EMPTY, path=Path(path))


def stand_in(path: Path, here: Machine) -> Machine:
    """Read a machine from a YAML file, with the limits of `here`, and its values for missing entries.

    Raises:
        UserError: as in `read`, or the file has none of the CPUs of this process.
    """
    described = replace(_built(_content(path), base=here, path=path), limits=here.limits, described_by=str(path))
    if not described.visible_cores:
        raise problem(
            f"{path} cannot replace this machine",
            got=f"CPUs {compact_cpus(tuple(cpu for core in described.cores for cpu in core.cpus))}",
            expected=f"at least one allowed CPU of this process: {compact_cpus(here.limits.allowed_cpus)}",
            fix="unset DITHC_MACHINE, or correct `cores` of the description",
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


def _content(path: Path) -> "_Keys":
    try:
        content = yaml.safe_load(plain(path).read_text(encoding="utf-8"))
    except OSError as error:
        got: object = error.strerror or error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        got = " ".join(str(error).split())
    else:
        return _Keys(path, "", content)
    raise problem(
        f"the machine description {path} cannot be read",
        got=got,
        expected="a YAML file written by `dithc doctor --describe`",
        fix="correct the path or the file",
    )


class _Keys:
    """Mapping of the file with keys that are consumed one by one. Remaining keys are rejected."""

    def __init__(self, path: Path, where: str, content: object) -> None:
        self.path, self.where = path, where
        if not isinstance(content, dict):
            raise self.fault(where or "the file", content, "a mapping of keys to values")
        self.content = dict(content)
        self.known: list[str] = []

    def fault(self, key: str, got: object, expected: str) -> UserError:
        return problem(f"{self.path}: {key}", got=got, expected=expected, fix="correct the description")

    def take(self, key: str, convert: Callable[[Any], T], expected: str, default: T | None = None) -> T:
        """Consume a key and return its converted value; if it is missing, return its default or raise an error."""
        self.known.append(key)
        name = f"{self.where}{key}"
        if key not in self.content:
            if default is None:
                raise self.fault(name, "no value: the key is missing", expected)
            return default
        value = self.content.pop(key)
        try:
            return convert(value)
        except UserError:
            raise
        except (ValueError, TypeError, AttributeError):
            raise self.fault(name, repr(value), expected) from None

    def each(self, key: str, convert: Callable[["_Keys"], T], default: Sequence[T] | None = None) -> tuple[T, ...]:
        """Consume a list of mappings. `convert` must consume each mapping completely."""
        if default is not None and key not in self.content:
            self.known.append(key)
            return tuple(default)
        items = self.take(key, _list, "a list of mappings")
        sections = [_Keys(self.path, f"{self.where}{key}[{number}].", item) for number, item in enumerate(items)]
        return tuple(section.finished(convert(section)) for section in sections)

    def finished(self, value: T) -> T:
        """Return `value` after checking that no keys remain."""
        if self.content:
            unknown = ", ".join(f"{self.where}{key}" for key in self.content)
            raise self.fault(unknown, "unknown key", f"one of {', '.join(self.known)}")
        return value


def _built(keys: _Keys, *, base: Machine, path: Path) -> Machine:
    def text(key: str, default: str) -> str:
        return keys.take(key, _string, "text", default)

    given = "nodes" in keys.content
    nodes = keys.each("nodes", lambda section: _record(Node, section), base.nodes)
    rows = keys.each("clusters", _cluster_row)
    cores, clusters = _cores(rows, nodes, keys)
    model_name = text("model_name", base.model_name)
    tiers = keys.each("tiers", _tier, tiers_of(nodes, model_name=model_name) if given else base.tiers)
    memory = sum(node.memory_bytes for node in nodes) if given else base.memory_bytes
    every_cpu = tuple(sorted(cpu for core in cores for cpu in core.cpus))
    everything = replace(EMPTY.limits, allowed_cpus=every_cpu)
    machine = Machine(
        model_name=model_name,
        architecture=text("architecture", base.architecture),
        flags=keys.take("flags", _strings, "a list of names", base.flags),
        num_sockets=len({core.socket for core in cores}),
        num_dies=len({core.die for core in cores}),
        clusters=clusters,
        cluster_rule=text("cluster_rule", "as described"),
        cores=cores,
        caches=keys.each("caches", lambda section: _record(Cache, section), base.caches),
        nodes=nodes,
        memory_bytes=keys.take("memory_bytes", _count, "a number of bytes", memory),
        huge_pages=keys.take(
            "huge_pages", lambda value: _part(HugePages, keys, "huge_pages", value), "", base.huge_pages
        ),
        limits=keys.take("limits", lambda value: _part(Limits, keys, "limits", value), "", everything),
        tiers=tiers,
        die_rule=text("die_rule", "as described"),
        offline_cpus=keys.take("offline_cpus", _cpus, "a list of CPUs such as 4-7", ()),
        slower_cores=keys.take("slower_cores", _cpus, "a list of cores such as 8-15", ()),
        network=_network(keys, base.network),
    )
    if any(core >= len(cores) for core in machine.slower_cores):
        raise keys.fault("slower_cores", compact_cpus(machine.slower_cores), f"cores below {len(cores)}")
    return keys.finished(machine)


def _cluster_row(section: _Keys) -> tuple[int, int, tuple[tuple[int, ...], ...], str]:
    return (
        section.take("socket", _count, "a number from 0", 0),
        section.take("die", _count, "a number from 0", 0),
        section.take("cores", expand_cores, "cores as a list of CPUs such as 0-37, or 0-19+80-99 with two CPUs each"),
        section.where,
    )


def _cores(
    rows: Sequence[tuple[int, int, tuple[tuple[int, ...], ...], str]], nodes: Sequence[Node], keys: _Keys
) -> tuple[tuple[Core, ...], tuple[Cluster, ...]]:
    node_of = {cpu: node.index for node in nodes for cpu in node.cpus}
    cores: list[Core] = []
    clusters: list[Cluster] = []
    used: set[int] = set()
    die_before = socket_before = 0
    if not rows:
        raise keys.fault("clusters", "an empty list", "at least one cluster")
    for index, (socket, die, members, where) in enumerate(rows):
        if die not in ((die_before, die_before + 1) if index else (0,)):
            raise keys.fault(f"{where}die", die, "consecutive dies from 0, numbered through all sockets")
        if socket < socket_before or (index and die == die_before and socket != socket_before):
            raise keys.fault(f"{where}socket", socket, "sockets in order, one per die")
        doubled = used.intersection(cpu for core in members for cpu in core)
        if doubled:
            raise keys.fault(f"{where}cores", f"CPU {min(doubled)}, which is also in another core", "each CPU once")
        die_before, socket_before = die, socket
        used.update(cpu for core in members for cpu in core)
        first = len(cores)
        for cpus in members:
            place = {"cluster": index, "die": die, "socket": socket, "node": node_of.get(cpus[0])}
            cores.append(Core(index=len(cores), cpus=cpus, **place))  # type: ignore[arg-type]
        clusters.append(
            Cluster(index=index, die=die, node=node_of.get(members[0][0]), cores=tuple(range(first, len(cores))))
        )
    return tuple(cores), tuple(clusters)


def _part(kind: type[T], keys: _Keys, key: str, value: object) -> T:
    section = _Keys(keys.path, f"{key}.", value)
    return section.finished(_record(kind, section))


def _network(keys: _Keys, default: Network | None) -> Network | None:
    if "network" not in keys.content:
        keys.known.append("network")
        return default
    network = keys.take("network", lambda value: _part(Network, keys, "network", value), "a mapping of keys to values")
    if network.cards_per_node < 1:
        raise keys.fault("network.cards_per_node", network.cards_per_node, "at least one card")
    return network


def _record(kind: type[T], section: _Keys) -> T:
    """Read a dataclass with fields that are texts, numbers, lists of numbers, CPU lists or pools."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name, hint = field.name, str(field.type)
        optional = "None" in hint or field.default is not MISSING
        if name not in section.content and optional:
            section.known.append(name)
            values[name] = None if field.default is MISSING else field.default
            continue
        convert, expected = _converter(name, hint)
        values[name] = section.take(name, convert, expected)
    return kind(**values)


def _converter(name: str, hint: str) -> tuple[Callable[[Any], Any], str]:
    if name in CPU_LISTS:
        return _cpus, "a list of CPUs such as 0-37,80"
    if "tuple[tuple" in hint:
        return _pools, "a list of [page bytes, reserved pages, free pages]"
    if "tuple[int" in hint:
        return lambda value: tuple(_count(item) for item in _list(value)), "a list of integers"
    if "float" in hint:
        return _positive, "a number above 0"
    if "int" in hint:
        return _count, "an integer from 0"
    return _string, "text"


def _tier(section: _Keys) -> Tier:
    kinds = get_args(TierKind)
    return Tier(
        kind=section.take("kind", lambda value: kinds[kinds.index(value)], f"one of {', '.join(kinds)}"),
        nodes=section.take("nodes", lambda value: tuple(map(_count, _list(value))), "a list of node numbers"),
        memory_bytes=section.take("memory_bytes", _count, "a number of bytes"),
        reason=section.take("reason", _string, "text", "as described"),
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(_string, _list(value)))


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError
    return float(value)


def _cpus(value: object) -> tuple[int, ...]:
    return parse_cpu_list(str(_count(value)) if isinstance(value, int) else _string(value))


def _pools(value: object) -> tuple[tuple[int, int, int], ...]:
    pools = []
    for pool in _list(value):
        size, reserved, free = map(_count, _list(pool))
        pools.append((size, reserved, free))
    return tuple(pools)
