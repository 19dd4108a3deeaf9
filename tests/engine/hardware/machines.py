"""Real machines as emulated trees, with the files of a Linux kernel below /sys and /proc."""

from tests.engine.hardware.tree import Tree, distances, span

A64FX_INFO = "processor : 0\nFeatures : fp asimd sve\nCPU implementer : 0x46\nCPU part : 0x001"
GRACE_INFO = "processor : 0\nFeatures : fp asimd sve sve2\nCPU implementer : 0x41\nCPU part : 0xd4f"
LX2_INFO = "processor : 0\nFeatures : fp asimd sve sme\nCPU implementer : 0x70\nCPU part : 0x002"


def container(tree: Tree) -> None:
    """Add two CPUs without topology, NUMA nodes and caches, the rest of sysfs in some sandboxes."""
    tree.process(allowed="0-1", gib=4)


def laptop(tree: Tree, *, low_power: bool = False) -> None:
    """Add 6 fast cores x 2 threads, 8 efficiency cores (an L2 per four), one L3; optionally 2 cores outside it."""
    l3 = "0-19"
    for core in range(6):
        pair = span(2 * core, 2)
        for cpu in (2 * core, 2 * core + 1):
            tree.cpu(cpu, socket=0, siblings=pair, l2=pair, l3=l3)
    for cpu in range(12, 20):
        tree.cpu(cpu, socket=0, siblings=str(cpu), l2=span(cpu // 4 * 4, 4), l3=l3)
    last = 19
    if low_power:
        last = 21
        for cpu in (20, 21):
            tree.cpu(cpu, socket=0, siblings=str(cpu), l2="20-21")
    tree.write("sys/devices/cpu_core/cpus", "0-11")
    tree.write("sys/devices/cpu_atom/cpus", f"12-{last}")
    tree.online(f"0-{last}")
    tree.node(0, cpus=f"0-{last}", gib=32, distances="10")
    tree.process(allowed=f"0-{last}", gib=32)


def epyc(tree: Tree, *, nodes_per_socket: int, chiplets_as_dies: bool = False) -> None:
    """Add 2 sockets x 64 cores x 2 threads, an L3 per chiplet of 8; since 6.9 kernels may number chiplets as dies."""
    num_cores, per_chiplet = 128, 8
    for core in range(num_cores):
        first = core // per_chiplet * per_chiplet
        l3 = f"{span(first, per_chiplet)},{span(first + num_cores, per_chiplet)}"
        die = core % 64 // per_chiplet if chiplets_as_dies else 0
        pair = f"{core},{core + num_cores}"
        for cpu in (core, core + num_cores):
            tree.cpu(cpu, socket=core // 64, die=die, siblings=pair, l2=pair, l3=l3)
    places = [(socket, part) for socket in range(2) for part in range(nodes_per_socket)]
    per_node = 64 // nodes_per_socket
    for node, row in enumerate(distances(places, steps=(32, 12))):
        cpus = f"{span(node * per_node, per_node)},{span(node * per_node + num_cores, per_node)}"
        tree.node(node, cpus=cpus, gib=512 // len(places), distances=row)
    tree.online("0-255")
    tree.process(allowed="0-255", gib=512)


def xeon_max(tree: Tree, *, flat: bool, hmat: bool = True, clusters_per_socket: int = 4) -> None:
    """Add 2 sockets x 56 cores x 2 threads; in flat mode each CPU node has an on-package memory node, numbered after
    them.
    """
    num_cores, per_node = 112, 56 // clusters_per_socket
    for core in range(num_cores):
        socket = core // 56
        l3 = f"{span(socket * 56, 56)},{span(socket * 56 + num_cores, 56)}"
        pair = f"{core},{core + num_cores}"
        for cpu in (core, core + num_cores):
            tree.cpu(cpu, socket=socket, siblings=pair, l2=pair, l3=l3)
    places = [(socket, part) for socket in range(2) for part in range(clusters_per_socket)]
    rows = [row.split() for row in distances(places, steps=(21, 12))]
    for node, row in enumerate(rows):
        first = node * per_node
        cpus = f"{span(first, per_node)},{span(first + num_cores, per_node)}"
        to_package = [str(int(distance) + (3 if distance == "10" else 2)) for distance in row]
        tree.node(node, cpus=cpus, gib=256 // len(places), distances=" ".join(row + to_package * flat))
        if flat:
            package = node + len(places)
            tree.node(package, cpus="", gib=128 // len(places), distances=" ".join(to_package + row))
            if hmat:
                tree.hmat(node, mib_per_second=300_000 // clusters_per_socket, ns=100)
                tree.hmat(package, mib_per_second=800_000 // clusters_per_socket, ns=110)
    tree.online("0-223")
    tree.process(allowed="0-223", gib=384 if flat else 256)


def a64fx(tree: Tree) -> None:
    """Add 4 core memory groups of 12 cores and 8 GiB on the package, one L2 each, no L3, no DDR; a ring pairs them."""
    for cpu in range(48):
        tree.cpu(cpu, socket=0, die=None, siblings=str(cpu), l2=span(cpu // 12 * 12, 12))
    places = [(pair, group) for pair in range(2) for group in range(2)]
    for node, row in enumerate(distances(places, steps=(30, 20))):
        tree.node(node, cpus=span(node * 12, 12), gib=8, distances=row)
    tree.online("0-47")
    tree.process(allowed="0-47", gib=32, cpuinfo=A64FX_INFO)


def grace(tree: Tree) -> None:
    """Add 2 sockets x 72 cores with one NUMA node and one L3 each, without die numbers."""
    for cpu in range(144):
        tree.cpu(cpu, socket=cpu // 72, die=None, siblings=str(cpu), l2=str(cpu), l3=span(cpu // 72 * 72, 72))
    for node, row in enumerate(distances([(0,), (1,)], steps=(40,))):
        tree.node(node, cpus=span(node * 72, 72), gib=240, distances=row)
    tree.online("0-143")
    tree.process(allowed="0-143", gib=480, cpuinfo=GRACE_INFO)


def grace_hopper(tree: Tree) -> None:
    """Add 72 cores; node 1: GPU memory, fast for the GPU (access class 0), not the CPU (class 1); node 2: empty."""
    for cpu in range(72):
        tree.cpu(cpu, socket=0, die=None, siblings=str(cpu), l2=str(cpu), l3="0-71")
    tree.node(0, cpus="0-71", gib=480, distances="10 80 80")
    tree.node(1, cpus="", gib=96, distances="80 10 255")
    tree.node(2, cpus="", gib=0, distances="80 255 10")
    tree.hmat(0, mib_per_second=480_000, ns=120)
    tree.hmat(0, mib_per_second=480_000, ns=120, access=1)
    tree.hmat(1, mib_per_second=3_900_000, ns=300)
    tree.hmat(1, mib_per_second=400_000, ns=800, access=1)
    tree.online("0-71")
    tree.process(allowed="0-71", gib=576, cpuinfo=GRACE_INFO)


def lx2(tree: Tree, *, hmat: bool = True) -> None:
    """Add 2 sockets x 2 dies x 4 core clusters x 38 cores.

    A core cluster is a NUMA node with DDR, an L2, and a node of on-package memory.
    """
    per_cluster, num_clusters = 38, 16
    for cpu in range(per_cluster * num_clusters):
        first = cpu // per_cluster * per_cluster
        tree.cpu(cpu, socket=cpu // (8 * per_cluster), die=None, siblings=str(cpu), l2=span(first, per_cluster))
    places = [(node // 8, node // 4, node) for node in range(num_clusters)]
    rows = [row.split() for row in distances(places, steps=(28, 16, 12))]
    for node, row in enumerate(rows):
        to_package = [str(int(distance) + 1) for distance in row]
        tree.node(node, cpus=span(node * per_cluster, per_cluster), gib=32, distances=" ".join(row + to_package))
        tree.node(node + num_clusters, cpus="", gib=8, distances=" ".join(to_package + row))
        if hmat:
            tree.hmat(node, mib_per_second=20_000, ns=150)
            tree.hmat(node + num_clusters, mib_per_second=100_000, ns=130)
    tree.online("0-607")
    tree.process(allowed="0-607", gib=640, cpuinfo=LX2_INFO)
