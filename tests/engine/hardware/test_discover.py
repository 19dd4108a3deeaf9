"""Discovery of the machine from sysfs, here and from emulated trees."""

import json
import os
from dataclasses import asdict

from dithc.engine.hardware import Limits, discover_machine


def test_discovered_machine_contains_allowed_cpus_and_memory():
    machine = discover_machine()
    assert set(machine.limits.allowed_cpus) == os.sched_getaffinity(0)
    assert machine.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1 <= len(machine.visible_cores) <= len(machine.cores)
    assert all(line.strip() for line in machine.describe().splitlines())
    json.dumps(asdict(machine))


def test_empty_tree_yields_cores_without_topology(tree):
    machine = discover_machine(tree.root)
    assert len(machine.cores) == os.cpu_count()
    assert machine.limits.memory_available_bytes is None


def test_offline_cpus_are_excluded_from_cores(flat_machine):
    tree = flat_machine(num_cores=8)
    tree.online("0-3,6")
    assert [core.cpus for core in discover_machine(tree.root).cores] == [(0,), (1,), (2,), (3,), (6,)]


def test_cgroup_v2_limits_are_the_minimum_over_parent_groups(flat_machine):
    tree = flat_machine(num_cores=8)
    tree.write("proc/self/cgroup", "0::/job/step")
    tree.write("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw")
    tree.write("sys/fs/cgroup/job/cpu.max", "250000 100000")
    tree.write("sys/fs/cgroup/job/step/cpu.max", "max 100000")
    tree.write("sys/fs/cgroup/job/memory.max", str(3 << 30))
    tree.write("sys/fs/cgroup/job/memory.current", str(2 << 30))
    tree.write("sys/fs/cgroup/job/memory.stat", f"anon 1\ninactive_file {1 << 30}")
    limits = Limits.read(tree.root)
    assert limits.cpu_quota == 2.5
    assert limits.memory_limit_bytes == 3 << 30
    assert limits.memory_available_bytes == 2 << 30
    assert Limits.out_of_memory_kills(tree.root) == 0
    tree.write("sys/fs/cgroup/job/memory.events", "low 0\noom 3\noom_kill 2\n")
    assert Limits.out_of_memory_kills(tree.root) == 2


def test_cgroup_v1_limits_are_read_below_the_mount_root(flat_machine):
    tree = flat_machine(num_cores=8)
    tree.write("proc/self/cgroup", "5:cpu,cpuacct:/box/7\n4:memory:/box/7")
    tree.write(
        "proc/self/mountinfo",
        "32 31 0:29 /box/7 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /box/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    )
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000")
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(1 << 30))
    tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", str(1 << 29))
    limits = Limits.read(tree.root)
    assert limits.cpu_quota == 1.5
    assert limits.memory_limit_bytes == 1 << 30
    assert limits.memory_available_bytes == 1 << 29


def test_unlimited_cgroup_has_no_limits(flat_machine):
    tree = flat_machine(num_cores=2)
    tree.write("proc/self/cgroup", "4:memory:/\n1:cpu:/")
    tree.write(
        "proc/self/mountinfo", "35 31 0:32 / /cg rw - cgroup cgroup rw,memory\n1 1 0:1 / /c rw - cgroup c rw,cpu"
    )
    tree.write("cg/memory.limit_in_bytes", "9223372036854771712")
    tree.write("c/cpu.cfs_quota_us", "-1")
    limits = Limits.read(tree.root)
    assert (limits.cpu_quota, limits.memory_limit_bytes) == (None, None)
    assert limits.memory_available_bytes == 32 << 30


def test_cgroup_outside_the_mount_root_is_not_matched_by_prefix(flat_machine):
    tree = flat_machine(num_cores=2)
    tree.write("proc/self/cgroup", "4:memory:/boxer")
    tree.write("proc/self/mountinfo", "35 31 0:32 /box /cg/memory rw - cgroup cgroup rw,memory")
    tree.write("cg/boxer/memory.limit_in_bytes", str(1 << 20))
    tree.write("cg/memory/memory.limit_in_bytes", str(2 << 30))
    assert Limits.read(tree.root).memory_limit_bytes == 2 << 30


def test_unknown_kernel_values_are_omitted(flat_machine):
    tree = flat_machine(num_cores=2)
    tree.write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1")
    tree.write("sys/devices/system/cpu/cpu0/topology/die_id", "-1")
    tree.node(0, cpus="0-1", gib=4, distances="10")
    tree.write("sys/devices/system/node/node0/access0/initiators/read_bandwidth", "0")
    machine = discover_machine(tree.root)
    assert machine.num_sockets == machine.num_dies == 1
    assert machine.nodes[0].read_bandwidth is None


def test_cores_with_offline_siblings_keep_one_cpu_each(two_sockets):
    two_sockets.online("0-79", present="0-159")
    machine = discover_machine(two_sockets.root)
    assert [core.cpus for core in machine.cores[:2]] == [(0,), (1,)]
    assert machine.offline_cpus == tuple(range(80, 160))
