"""A machine description is read back unchanged. An invalid file is rejected with its wrong key."""

import os
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.engine.hardware import description, discover_machine, plan_cores
from dithc.engine.hardware.cpu_lists import compact_cores, expand_cores
from tests.engine.hardware import machines
from tests.engine.hardware.test_machines import assert_lx2

PROFILES = Path(__file__).parents[3] / "profiles/machines"
TREES = {
    "laptop": lambda tree: machines.laptop(tree, low_power=True),
    "Xeon Max": lambda tree: machines.xeon_max(tree, flat=True),
    "A64FX": machines.a64fx,
    "LX2": machines.lx2,
}
ONE_CLUSTER = "clusters: [{cores: 0-3}]\n"


@pytest.mark.parametrize("name", TREES)
def test_emulated_machine_survives_yaml_round_trip(tree, tmp_path, name):
    TREES[name](tree)
    tree.pool("sys/devices/system/node/node0/hugepages", kib=2048, reserved=7, free=6)
    machine = discover_machine(tree.root)
    (tmp_path / "machine.yaml").write_text(description.to_yaml(machine))
    assert description.read(tmp_path / "machine.yaml") == machine


def test_this_machine_survives_yaml_round_trip(tmp_path):
    machine = discover_machine(described=False)
    (tmp_path / "machine.yaml").write_text(description.to_yaml(machine))
    assert description.read(str(tmp_path / "machine.yaml")) == machine


def test_minimal_description_is_accepted_with_defaults(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text("clusters: [{cores: 0-1+4-5}, {cores: [], die: 1}]".replace("[]", "'2+6,3'"))
    machine = description.read(path)
    assert [core.cpus for core in machine.cores] == [(0, 4), (1, 5), (2, 6), (3,)]
    assert (machine.num_dies, machine.num_sockets, machine.memory_bytes) == (2, 1, 0)
    assert machine.limits.allowed_cpus == (0, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour: red\n" + ONE_CLUSTER, "colour"),
        ("clusters: [{cores: 0-3, speed: 1}]", r"clusters\[0\]\.speed"),
        (
            ONE_CLUSTER + "nodes: [{index: 0, cpus: 0-3, memory_bytes: 1, distances: [10], colour: 1}]",
            r"nodes\[0\]\.colour",
        ),
        (ONE_CLUSTER + "nodes: [{index: 0, cpus: 0-3, distances: [10]}]", r"nodes\[0\]\.memory_bytes"),
        (
            ONE_CLUSTER + "nodes: [{index: 0, cpus: 0-3, memory_bytes: much, distances: [10]}]",
            r"nodes\[0\]\.memory_bytes",
        ),
        (ONE_CLUSTER + "nodes: 3", "nodes"),
        (ONE_CLUSTER + "huge_pages: {transparent: never, pools: [[1, 2]]}", r"huge_pages\.pools"),
        (ONE_CLUSTER + "limits: {allowed_cpus: 0-1, cpu_quota: -1}", r"limits\.cpu_quota"),
        (ONE_CLUSTER + "tiers: [{kind: fast, nodes: [0], memory_bytes: 1}]", r"tiers\[0\]\.kind"),
        (ONE_CLUSTER + "slower_cores: 4", "slower_cores"),
        ("model_name: x", "clusters"),
        ("clusters: []", "clusters"),
        ("clusters: [{cores: 0-1+2-4}]", r"clusters\[0\]\.cores"),
        ("clusters: [{cores: x}]", r"clusters\[0\]\.cores"),
        ("clusters: [{cores: ''}]", r"clusters\[0\]\.cores"),
        ("clusters: [{cores: true}]", r"clusters\[0\]\.cores"),
        ("clusters: [{cores: 0-3}, {cores: 3-5}]", r"clusters\[1\]\.cores"),
        ("clusters: [{cores: 0-3}, {cores: 4-5, die: 2}]", r"clusters\[1\]\.die"),
        ("clusters: [{cores: 0-3}, {cores: 4-5, socket: 1}]", r"clusters\[1\]\.socket"),
        ("- 1", "the file"),
        ("clusters: [", "cannot be read"),
        ("clusters: [3]", r"clusters\[0\]"),
    ],
)
def test_invalid_description_error_contains_key_path_and_fix(tmp_path, text, key):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=key) as error:
        description.read(path)
    assert str(path) in str(error.value)
    assert "fix" in str(error.value)


def test_lx2_profile_matches_the_paper():
    machine = description.read(PROFILES / "lx2.yaml")
    assert_lx2(machine)
    assert {"sve", "sme"} <= set(machine.flags)


def test_description_replaces_this_machine_but_keeps_process_limits(monkeypatch, tmp_path, dithc_log):
    present = discover_machine(described=False)
    cpus = present.limits.allowed_cpus
    path = tmp_path / "apart.yaml"
    path.write_text("clusters:\n" + "".join(f"- {{cores: {cpu}}}\n" for cpu in (*cpus, max(cpus) + 1)))
    monkeypatch.setenv("DITHC_MACHINE_FILE", str(path))
    machine = discover_machine()
    assert len(machine.clusters) == len(cpus) + 1
    assert len(machine.visible_cores) == len(cpus)
    assert machine.limits.allowed_cpus == cpus
    assert (machine.caches, machine.model_name, machine.nodes) == (present.caches, present.model_name, present.nodes)
    assert machine.described_by == str(path)
    assert str(path) in machine.describe()
    assert plan_cores(machine, ranks_per_node=1).ranks[0].clusters == tuple((core,) for core in range(len(cpus)))
    discover_machine()
    assert dithc_log.text.count("replaces this machine") == 1


def test_two_clusters_profile_defines_two_single_core_clusters(monkeypatch):
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("this process may not use CPUs 0 and 1")
    monkeypatch.setenv("DITHC_MACHINE_FILE", str(PROFILES / "two-clusters.yaml"))
    machine = discover_machine()
    assert (machine.num_dies, [cluster.cores for cluster in machine.clusters]) == (1, [(0,), (1,)])
    assert plan_cores(machine, ranks_per_node=1).ranks[0].clusters[:2] == ((0,), (1,))
    assert [rank.clusters for rank in plan_cores(machine, ranks_per_node=2).ranks] == [((0,),), ((1,),)]


def test_description_is_ignored_for_emulated_tree_and_described_false(monkeypatch, tree):
    monkeypatch.setenv("DITHC_MACHINE_FILE", "/nowhere.yaml")
    machines.container(tree)
    assert len(discover_machine(tree.root).cores) == 2
    assert discover_machine(described=False).described_by == ""
    with pytest.raises(UserError, match=r"/nowhere\.yaml"):
        discover_machine()


def test_description_without_allowed_cpus_is_rejected(monkeypatch, tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text("clusters: [{cores: 100000-100001}]")
    monkeypatch.setenv("DITHC_MACHINE_FILE", str(path))
    with pytest.raises(UserError, match="cannot replace"):
        discover_machine()


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        ([(0,), (1,), (2,)], "0-2"),
        ([(0, 80), (1, 81)], "0-1+80-81"),
        ([(0, 1), (2, 3), (16,), (17,)], "0+1,2+3,16-17"),
        ([(5,)], "5"),
        ([(cpu,) for cpu in range(7, 300, 3)], ",".join(map(str, range(7, 300, 3)))),
    ],
)
def test_compact_core_lists_survive_round_trip(cores, text):
    assert compact_cores(cores) == text
    assert expand_cores(text) == tuple(cores)
