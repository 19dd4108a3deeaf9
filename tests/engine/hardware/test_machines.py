"""Real machines as reported by their kernels: dies, core clusters, cores, memory tiers, and the core plan."""

import pytest

from dithc.engine.hardware import Machine, discover_machine, plan_cores
from tests.engine.hardware import machines

GIB = 1 << 30


def shape(machine):
    return machine.num_sockets, machine.num_dies, len(machine.clusters), len(machine.cores)


def tiers(machine):
    return {tier.kind: (tier.nodes, tier.memory_bytes // GIB) for tier in machine.tiers}


def sizes(rank_plan):
    return [len(cores) for cores in rank_plan.clusters]


def test_container_without_topology_has_one_core_per_cpu(tree):
    machines.container(tree)
    machine = discover_machine(tree.root)
    assert shape(machine) == (1, 1, 1, 2)
    assert (machine.nodes, machine.tiers, machine.caches) == ((), (), ())
    assert "entire die" in machine.cluster_rule
    (rank,) = plan_cores(machine, ranks_per_node=1).ranks
    assert (rank.clusters, rank.reserved, rank.num_threads) == (((0, 1),), (), 2)


def test_laptop_is_one_l3_cluster_with_efficiency_cores_detected(tree):
    machines.laptop(tree)
    machine = discover_machine(tree.root)
    assert shape(machine) == (1, 1, 1, 14)
    assert machine.slower_cores == tuple(range(6, 14))
    assert [len(core.cpus) for core in machine.cores] == [2] * 6 + [1] * 8
    assert tiers(machine) == {"ddr": ((0,), 32)}
    core_plan = plan_cores(machine, ranks_per_node=1)
    assert sizes(core_plan.ranks[0]) == [14]
    assert any("8 core(s) are slower" in reason for reason in core_plan.reasons)
    assert "8 of the cores are efficiency cores" in machine.describe()


def test_laptop_cores_outside_the_l3_form_an_l2_cluster(tree):
    machines.laptop(tree, low_power=True)
    machine = discover_machine(tree.root)
    assert [len(cluster.cores) for cluster in machine.clusters] == [14, 2]
    assert "an L2 without L3" in machine.cluster_rule


@pytest.mark.parametrize("chiplets_as_dies", [False, True])
def test_epyc_with_one_node_per_socket_has_one_cluster_per_l3(tree, chiplets_as_dies):
    machines.epyc(tree, nodes_per_socket=1, chiplets_as_dies=chiplets_as_dies)
    machine = discover_machine(tree.root)
    assert shape(machine) == (2, 2, 16, 128)
    assert {len(cluster.cores) for cluster in machine.clusters} == {8}
    assert ("chiplets" in machine.die_rule) is chiplets_as_dies
    assert machine.cores[64].cpus == (64, 192)
    assert tiers(machine) == {"ddr": ((0, 1), 512)}
    first, second = plan_cores(machine, ranks_per_node=2).ranks
    # 3 spare cores for 8 clusters: one for each of the two purposes, from two clusters.
    assert sizes(first) == [8] * 6 + [7] * 2
    assert dict(first.reserved) == {"communication": 55, "load": 63}
    assert second.cores == tuple(range(64, 128))


@pytest.mark.parametrize("chiplets_as_dies", [False, True])
def test_epyc_with_four_nodes_per_socket_has_one_cluster_per_node(tree, chiplets_as_dies):
    machines.epyc(tree, nodes_per_socket=4, chiplets_as_dies=chiplets_as_dies)
    machine = discover_machine(tree.root)
    assert shape(machine) == (2, 2, 8, 128)
    assert machine.cluster_rule == "one per NUMA node"
    assert [cluster.node for cluster in machine.clusters] == list(range(8))
    assert tiers(machine) == {"ddr": (tuple(range(8)), 512)}
    assert sizes(plan_cores(machine, ranks_per_node=2).ranks[0]) == [16, 16, 15, 15]
    # Data parallel: one rank per core cluster.
    assert [rank.cores[0] for rank in plan_cores(machine, ranks_per_node=8).ranks] == list(range(0, 128, 16))


@pytest.mark.parametrize("hmat", [True, False])
@pytest.mark.parametrize(("clusters", "dies_and_clusters"), [(4, (2, 2, 8, 112)), (1, (2, 2, 2, 112))])
def test_xeon_max_in_flat_mode_has_ddr_and_on_package_tiers(tree, hmat, clusters, dies_and_clusters):
    machines.xeon_max(tree, flat=True, hmat=hmat, clusters_per_socket=clusters)
    machine = discover_machine(tree.root)
    assert shape(machine) == dies_and_clusters
    num = 2 * clusters
    assert tiers(machine) == {"ddr": (tuple(range(num)), 256), "on-package": (tuple(range(num, 2 * num)), 128)}
    assert ("a higher bandwidth (HMAT)" in machine.tiers[1].reason) is hmat
    assert "tier on-package: 128.0 GiB" in machine.describe()
    if hmat:
        assert machine.nodes[num].read_bandwidth == 800_000 // clusters << 20
        assert machine.nodes[num].write_latency_ns == 110
    else:
        assert machine.nodes[num].read_bandwidth is None
    (first, _) = plan_cores(machine, ranks_per_node=2).ranks
    assert sizes(first) == ([14, 14, 13, 13] if clusters == 4 else [54])
    assert [purpose for purpose, _ in first.reserved] == ["communication", "load"]


def test_a64fx_is_one_die_of_four_groups_with_on_package_memory_only(tree):
    machines.a64fx(tree)
    machine = discover_machine(tree.root)
    assert shape(machine) == (1, 1, 4, 48)
    assert "rule for this processor" in machine.die_rule
    assert tiers(machine) == {"on-package": ((0, 1, 2, 3), 32)}
    (rank,) = plan_cores(machine, ranks_per_node=1).ranks
    assert sizes(rank) == [12, 12, 11, 11]
    assert rank.num_threads == 46


def test_a64fx_clusters_follow_l2_caches_without_numa_nodes(tree):
    machines.a64fx(tree)
    (tree.root / "sys/devices/system/node").rename(tree.root / "nodes")
    machine = discover_machine(tree.root)
    assert shape(machine) == (1, 1, 4, 48)
    assert machine.cluster_rule == "cores sharing an L2 cache"


def test_cores_without_caches_use_kernel_cluster_lists(tree):
    for cpu in range(8):
        tree.cpu(cpu, socket=0, die=None, siblings=str(cpu))
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/topology/cluster_cpus_list", "0-3" if cpu < 4 else "4-7")
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", "1024" if cpu < 4 else "485")
    tree.online("0-7")
    tree.process(allowed="0-7")
    machine = discover_machine(tree.root)
    assert [cluster.cores for cluster in machine.clusters] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert machine.slower_cores == (4, 5, 6, 7)


def test_grace_has_one_die_and_one_cluster_per_socket(tree):
    machines.grace(tree)
    machine = discover_machine(tree.root)
    assert shape(machine) == (2, 2, 2, 144)
    assert machine.cluster_rule == "cores sharing an L3 cache"
    assert (machine.architecture, machine.model_name) == ("aarch64", "Neoverse V2")
    assert tiers(machine) == {"ddr": ((0, 1), 480)}
    first, _ = plan_cores(machine, ranks_per_node=2).ranks
    assert (sizes(first), dict(first.reserved)) == ([70], {"communication": 70, "load": 71})


def test_gpu_memory_is_an_expander_tier_of_the_cpu(tree):
    machines.grace_hopper(tree)
    machine = discover_machine(tree.root)
    assert tiers(machine) == {"ddr": ((0,), 480), "expander": ((1,), 96)}
    assert machine.nodes[1].read_bandwidth == 400_000 << 20  # from the CPU, not from the GPU


def assert_lx2(machine: Machine) -> None:
    assert shape(machine) == (2, 4, 16, 608)
    assert {len(cluster.cores) for cluster in machine.clusters} == {38}
    assert [cluster.die for cluster in machine.clusters] == [die for die in range(4) for _ in range(4)]
    assert [cluster.node for cluster in machine.clusters] == list(range(16))
    assert tiers(machine) == {"ddr": (tuple(range(16)), 512), "on-package": (tuple(range(16, 32)), 128)}
    core_plan = plan_cores(machine, ranks_per_node=4)
    assert core_plan.reasons == ()
    for die, rank in enumerate(core_plan.ranks):
        assert rank.cores == tuple(range(152 * die, 152 * (die + 1)))
        assert sizes(rank) == [36] * 4
        assert sum(rank.clusters, ()) == rank.compute
        assert [purpose for purpose, _ in rank.reserved][:3] == ["communication", "load", "offload"]
        assert {core - 152 * die for _, core in rank.reserved} == {36, 37, 74, 75, 112, 113, 150, 151}


@pytest.mark.parametrize("hmat", [True, False])
def test_lx2_has_four_dies_of_four_clusters_with_36_compute_cores_each(tree, hmat):
    machines.lx2(tree, hmat=hmat)
    machine = discover_machine(tree.root)
    assert_lx2(machine)
    assert "nearer to each other" in machine.die_rule
    ranks = plan_cores(machine, ranks_per_node=16).ranks
    assert [sizes(rank) for rank in ranks] == [[36]] * 16


def test_ranks_stay_within_dies_if_a_core_is_offline(tree):
    machines.lx2(tree)
    tree.online("0-9,11-607", present="0-607")
    tree.process(allowed="0-9,11-607")
    machine = discover_machine(tree.root)
    assert machine.offline_cpus == (10,)
    assert "1 CPU(s) are offline" in machine.describe()
    ranks = plan_cores(machine, ranks_per_node=4).ranks
    assert [len({machine.cores[core].die for core in rank.cores}) for rank in ranks] == [1] * 4
    assert [rank.cores[0] for rank in ranks] == [0, 151, 303, 455]
    # The die with 151 cores reserves 7, one less than the other dies, and its clusters stay equal.
    assert [sizes(rank) for rank in ranks] == [[36] * 4] * 4


def test_ranks_are_split_evenly_if_a_cpuset_makes_dies_unequal(tree):
    machines.grace(tree)
    tree.process(allowed="0-9,72-73")
    core_plan = plan_cores(discover_machine(tree.root), ranks_per_node=2)
    assert [len(rank.cores) for rank in core_plan.ranks] == [6, 6]
    assert any("different numbers of usable cores" in reason for reason in core_plan.reasons)
    assert any("rank 1 spans several sockets" in reason for reason in core_plan.reasons)


def test_reserved_huge_pages_are_read_per_machine_and_per_node(tree):
    machines.grace(tree)
    tree.pool("sys/kernel/mm/hugepages", kib=524288, reserved=5, free=4)
    tree.pool("sys/kernel/mm/hugepages", kib=2048, reserved=3, free=3)
    tree.pool("sys/devices/system/node/node1/hugepages", kib=524288, reserved=5, free=4)
    machine = discover_machine(tree.root)
    assert machine.huge_pages.pools == ((2 << 20, 3, 3), (512 << 20, 5, 4))
    assert machine.nodes[0].huge_page_pools == ()
    assert machine.nodes[1].huge_page_pools == ((512 << 20, 5, 4),)
