"""Loading of the C library: checks, missing libraries, and separate threads."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.hardware import Machine, discover_machine, plan_cores
from dithc.engine.hcops.c import library
from dithc.engine.native import contexts, instruction_sets, loading, thread_layout
from tests.engine.native.scripts import run_script

CACHES = (loading.load_library, instruction_sets.isa_choice, library._handle)


@pytest.fixture
def fresh():
    """Clear the caches of loading and detection before and after a test that changes their inputs."""
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


@pytest.fixture
def needs_library():
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")


def with_checksum(content: bytes) -> bytes:
    return content + loading.SEAL + hashlib.sha256(content).hexdigest().encode()


def test_missing_library_is_logged_once_with_cause(fresh, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(loading, "LIBRARY", tmp_path / "none.so")
    with caplog.at_level("WARNING"):
        assert native.library() is None
        assert native.library() is None
    assert (native.instruction_set(), native.kernels()) == ("none", [])
    assert "never built" in native.load_library().reason
    assert "compiler" not in native.load_library().reason
    assert caplog.text.count("C kernels are off") == 1
    (tmp_path / "none.txt").write_text("there was no C compiler\n")
    assert "there was no C compiler" in str(loading.fault(tmp_path / "none.so"))


@pytest.fixture(scope="module")
def built():
    if not loading.LIBRARY.exists():
        pytest.skip("no library")
    return loading.LIBRARY.read_bytes().rpartition(loading.SEAL)[0] or loading.LIBRARY.read_bytes()


@given(data=st.data(), has_seal=st.booleans())
@settings(deadline=None, max_examples=8)
def test_truncated_library_is_not_loaded(data, has_seal, built, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "cut.so"
    path.write_bytes((with_checksum(built) if has_seal else built)[: data.draw(st.integers(0, len(built) - 1))])
    assert "damaged" in str(loading.fault(path))


@given(data=st.data())
@settings(deadline=None, max_examples=8)
def test_library_with_an_altered_byte_is_not_loaded(data, built, tmp_path_factory):
    path, garbled = tmp_path_factory.mktemp("garbled") / "garbled.so", bytearray(with_checksum(built))
    garbled[data.draw(st.integers(0, len(built) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(garbled)
    assert "damaged" in str(loading.fault(path))


def test_library_of_another_architecture_is_reported(built, tmp_path):
    other = built[:18] + bytes([built[18] ^ 1]) + built[19:]
    for content in (other, with_checksum(other)):
        (tmp_path / "other.so").write_bytes(content)
        assert "another processor architecture" in str(loading.fault(tmp_path / "other.so"))
    for content in (built, with_checksum(built)):
        (tmp_path / "other.so").write_bytes(content)
        assert loading.fault(tmp_path / "other.so") is None


def test_library_of_another_abi_version_is_rejected(needs_library, fresh, monkeypatch):
    monkeypatch.setattr(loading, "ABI_VERSION", 99)
    assert native.library() is None
    assert "install the package again" in native.load_library().reason


def test_hcops_isa_variable_lowers_the_instruction_set(needs_library, fresh, monkeypatch):
    monkeypatch.setenv("HCOPS_ISA", "ref")
    assert native.instruction_set() == "ref"
    assert {isa for _, isa in native.kernels()} == {"ref"}


def test_default_instruction_set_is_the_fastest_not_the_newest(needs_library, fresh, monkeypatch):
    monkeypatch.delenv("HCOPS_ISA", raising=False)
    cpu = Path("/proc/cpuinfo").read_text()
    if "avx512_bf16" not in cpu.split():
        pytest.skip("no AVX512_BF16")
    amx = "amx_bf16" in cpu.split()
    assert native.instruction_set() == ("amxfp32" if amx else "avx512" if "GenuineIntel" in cpu else "avx512bf16")
    instruction_sets.isa_choice.cache_clear()
    monkeypatch.setenv("HCOPS_ISA", "avx512bf16")
    assert native.instruction_set() == "avx512bf16"


@pytest.mark.parametrize("name", ["avx9000", "sme neon"])
def test_unknown_instruction_set_is_rejected(name, needs_library, fresh, monkeypatch):
    monkeypatch.setenv("HCOPS_ISA", name)
    with pytest.raises(UserError, match="HCOPS_ISA"):
        native.instruction_set()


def test_context_is_cached_per_number_of_threads(needs_library, monkeypatch):
    monkeypatch.setattr(contexts, "_borrowers", 0)  # torch.compile may keep a patched model of an earlier test alive
    single, double = native.context(num_threads=1), native.context(num_threads=2)
    assert single != double
    assert native.context(num_threads=1) == single
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert native.context() == single
    finally:
        torch.set_num_threads(before)


def test_threads_are_pinned_only_if_all_allowed_cores_are_filled():
    node = discover_machine()
    cores = node.visible_cores
    pinned = thread_layout.thread_places(node, len(cores))
    assert [cpu in core.cpus for (cpu, _), core in zip(pinned, cores, strict=True)] == [True] * len(cores)
    assert thread_layout.thread_places(node, 10_000) == []
    one_allowed = replace(node, limits=replace(node.limits, allowed_cpus=cores[0].cpus))
    assert thread_layout.thread_places(one_allowed, 1) == [(cores[0].cpus[0], cores[0].cluster)]


def test_threads_are_not_pinned_if_cpu_quota_is_below_cpu_count():
    node = _node_of_clusters(8)
    assert len(thread_layout.thread_places(node, 8)) == 8
    throttled = replace(node, limits=replace(node.limits, cpu_quota=2.5))
    assert thread_layout.thread_places(throttled, 8) == []


def _node_of_clusters(*sizes: int) -> Machine:
    """Return this machine with other cores: one CPU each, in clusters of the given sizes."""
    node = discover_machine()
    clusters = [cluster for cluster, size in enumerate(sizes) for _ in range(size)]
    cores = tuple(replace(node.cores[0], index=i, cpus=(i,), cluster=cluster) for i, cluster in enumerate(clusters))
    return replace(node, cores=cores, limits=replace(node.limits, allowed_cpus=tuple(range(len(cores)))))


def test_threads_are_pinned_to_compute_cores_and_split_by_cluster():
    node = _node_of_clusters(38, 38)
    compute = plan_cores(node, ranks_per_node=1).ranks[0].compute
    assert len(compute) < len(node.cores)
    placed = thread_layout.thread_places(node, len(compute))
    assert [cpu for cpu, _ in placed] == list(compute)
    assert thread_layout.num_equal_clusters([0] * 37 + [1] * 38) == 2
    assert thread_layout.num_equal_clusters([0] * 30 + [1] * 38) == 1
    assert thread_layout.num_equal_clusters([]) == 1


@pytest.mark.slow
def test_child_forked_during_an_operator_continues(needs_library):
    done = run_script("""
import os, threading, torch
from dithc.engine import hcops
hcops.use("c")
torch.set_num_threads(2)
x, w = torch.randn(2048, 512), torch.randn(512, 512)
right = hcops.linear(x, w)
busy = threading.Thread(target=lambda: [hcops.linear(x, w) for _ in range(10**9)], daemon=True)
busy.start()
for _ in range(8):
    child = os.fork()
    if child == 0:
        same = torch.equal(hcops.linear(x, w), right)
        os._exit(0 if same else 1)
    for _ in range(3000):
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            break
        threading.Event().wait(0.1)
    assert gone and status == 0, (gone, status)
print("all children continued", flush=True)
os._exit(0)
""")
    assert "all children continued" in done.stdout, done.stderr


@pytest.mark.slow
def test_process_exits_cleanly_during_an_operator(needs_library):
    done = run_script("""
import threading, time, torch
from dithc.engine import hcops
hcops.use("c")
x, w = torch.randn(2048, 512), torch.randn(512, 512)
threading.Thread(target=lambda: [hcops.linear(x, w) for _ in range(10**9)], daemon=True).start()
time.sleep(1)
""")
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_cache_bytes_per_core_do_not_exceed_the_cache_size():
    node = discover_machine()
    for level in (1, 2, 3):
        caches = [cache for cache in node.caches if cache.level == level and cache.kind != "Instruction"]
        share = thread_layout.cache_bytes(node, level)
        assert share <= (caches[0].size_bytes if caches else 0)
    assert thread_layout.cache_bytes(replace(node, caches=()), 1) == 0


ALONE = """
import os, torch
torch.set_num_threads(2)
from dithc.engine import hcops, native
def tasks():
    found = {}
    for task in os.listdir("/proc/self/task"):
        status = open(f"/proc/self/task/{task}/status").read()
        found[task] = status.split("Cpus_allowed_list:")[1].split()[0]
    return found
def torch_work():
    return (torch.ones(512, 512) @ torch.ones(512, 512)).add_(torch.ones(512, 512)).sum()
torch_work()
before, threads, mask = tasks(), torch.get_num_threads(), os.sched_getaffinity(0)
hcops.use("c")
for _ in range(3):
    hcops.linear(torch.randn(512, 256), torch.randn(256, 256))
    torch_work()
after = tasks()
new = set(after) - set(before)
assert all(after[task] == before[task] for task in before), (before, after)
assert len(new) == 1, (before, after)  # one thread of the team next to the caller, and no second OpenMP pool
assert torch.get_num_threads() == threads and os.sched_getaffinity(0) == mask
print("untouched")
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.slow
def test_torch_threads_and_masks_are_unchanged(needs_library):
    done = run_script(ALONE)
    assert done.stdout.strip() == "untouched", done.stderr
