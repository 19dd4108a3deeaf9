"""Tests of background copies: content, priority, errors to waiting callers, no leaks, no remaining threads."""

import errno
import gc
import mmap
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.hardware import discover_machine
from dithc.engine.memory import copy_engine as module
from dithc.engine.memory.copy_engine import CopyEngine, FileMapping
from dithc.engine.memory.tier_specs import TierSpec
from dithc.engine.memory.tiers import Tiers
from tests.engine.native.scripts import run_script

pytestmark = pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
PART = 4 << 20  # HC_COPY_PART_BYTES
MAX_SECONDS = 600.0


class FileTier:
    """Tier in a mapped file, which copies access by its descriptor."""

    def __init__(self, path: Path, num_bytes: int):
        path.write_bytes(bytes(num_bytes))
        self.file = path.open("r+b")
        self.map = mmap.mmap(self.file.fileno(), num_bytes)
        self.tensor = torch.frombuffer(self.map, dtype=torch.uint8)

    def mapping(self):
        return FileMapping(self.tensor.data_ptr(), self.tensor.nbytes, self.file.fileno())


@pytest.fixture
def make():
    engines = []

    def new(*arguments, **settings) -> CopyEngine:
        engines.append(CopyEngine(*arguments, **settings))
        return engines[-1]

    yield new
    for copies in engines:
        copies.close()
        assert not copies._engine.kept


@pytest.fixture
def copies(make):
    return make()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail after a minute."""
    deadline = time.monotonic() + MAX_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(count).remainder(251).to(dtype)


SIZES = (0, 1, 63, 64, 65, 4095, 100_003, PART // 4 - 1, PART // 4, 2 * PART // 4 + 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_copies_equal_the_source_for_any_size_and_offset(copies, dtype):
    for count, offset in product(SIZES, (0, 3)):
        source, target = numbers(count + offset, dtype)[offset:], torch.zeros(count + 2 * offset, dtype=dtype)
        copies.wait(copies.submit(target[offset : offset + count], source, stream="load"))
        assert torch.equal(target[offset : offset + count], source)
        assert not target[:offset].any()  # adjacent memory is unchanged
        assert not target[offset + count :].any()
        target.zero_()
        copies.now(target[offset : offset + count], source)
        assert torch.equal(target[offset : offset + count], source)
        assert not target[offset + count :].any()


def test_counters_report_copied_bytes_per_stream(copies):
    source, target = numbers(PART), torch.empty(PART)
    tickets = [
        copies.submit(target, source, stream="load"),
        copies.submit(torch.empty(10), source[:10], stream="offload"),
    ]
    for ticket in tickets:
        copies.wait(ticket)
        assert copies.is_done(ticket)
    found = copies.counters()
    assert (found.loaded_bytes, found.offloaded_bytes, found.failed, found.queued_bytes) == (target.nbytes, 40, 0, 0)
    assert found.busy_seconds["load"] > 0
    assert found.stall_seconds >= 0
    copies.now(target, source)
    assert copies.counters().blocking_bytes == found.blocking_bytes + target.nbytes
    assert copies.counters().loaded_bytes == found.loaded_bytes


def test_failed_copies_raise_only_in_waiting_callers(copies):
    copies.inject_faults(error=errno.EIO, after_bytes=4000)
    source = numbers(1000)
    tickets = [copies.submit(torch.empty(1000), source, stream="load") for _ in range(3)]
    copies.wait(tickets[0])
    for ticket in tickets[1:] * 2:  # also a second time
        with pytest.raises(OSError, match="load of 4000 bytes: Input/output error"):
            copies.wait(ticket)
    with pytest.raises(OSError, match="Input/output"):
        copies.now(torch.empty(1000), source)
    assert copies.counters().failed == 3
    copies.inject_faults()
    target = torch.empty(1000)
    copies.wait(copies.submit(target, source, stream="load"))
    assert torch.equal(target, source)


def test_unawaited_failures_are_logged(copies, caplog):
    copies.inject_faults(error=errno.ENOSPC)
    copies.submit(torch.empty(1000), numbers(1000), stream="offload")
    copies.drain()
    assert "offload of 4000 bytes failed: No space left on device" in caplog.text


def test_file_tensors_are_copied_through_the_descriptor(make, tmp_path):
    tier = FileTier(tmp_path / "tier", 4 * PART)
    copies = make([SimpleNamespace(mapping=lambda: None), tier])
    source, count = numbers(PART + 4097, torch.uint8), PART + 4097
    place, other = tier.tensor[8192 : 8192 + count], tier.tensor[2 * PART : 2 * PART + count]
    copies.wait(copies.submit(place, source, stream="offload"))
    assert (tmp_path / "tier").read_bytes()[8192 : 8192 + count] == source.numpy().tobytes()
    assert torch.equal(place, source)  # the mapping shows the written data
    copies.now(other, place)  # within the file
    target = torch.zeros_like(source)
    copies.wait(copies.submit(target, other, stream="load"))
    assert torch.equal(target, source)
    assert not tier.tensor[:8192].any()


def test_file_errors_preserve_system_error_numbers(make, tmp_path):
    with open("/dev/full", "r+b", buffering=0) as full, (tmp_path / "short").open("w+b") as short:
        for descriptor, target_is_file, expected in (
            (full.fileno(), True, errno.ENOSPC),
            (short.fileno(), False, errno.EIO),  # the file ends before its mapping
            (os.open(tmp_path, os.O_RDONLY), False, errno.EISDIR),
        ):
            mapped, memory = (torch.zeros(5000, dtype=torch.uint8) for _ in range(2))
            mapping = FileMapping(mapped.data_ptr(), mapped.nbytes, descriptor)
            copies = make([SimpleNamespace(mapping=lambda mapping=mapping: mapping)])
            pair = (mapped, memory) if target_is_file else (memory, mapped)
            with pytest.raises(OSError) as caught:
                copies.wait(copies.submit(*pair, stream="offload"))
            assert caught.value.errno == expected
            with pytest.raises(OSError) as caught:
                copies.now(*pair)
            assert caught.value.errno == expected


def test_only_copies_of_pages_use_direct_access(make, tmp_path):
    tier, direct = FileTier(tmp_path / "file", 1 << 20), (tmp_path / "direct").open("w+b")
    mapping = tier.mapping()._replace(direct=direct.fileno())
    copies = make([SimpleNamespace(mapping=lambda: mapping)])
    source = torch.frombuffer(mmap.mmap(-1, 1 << 16), dtype=torch.uint8).fill_(7)  # begins at a page
    copies.now(tier.tensor[8192:16384], source[:8192])
    copies.now(tier.tensor[100:8292], source[:8192])
    copies.now(tier.tensor[32768:36864], source[1:4097])
    copies.now(tier.tensor[65536:65636], source[:100])
    assert os.fstat(direct.fileno()).st_size == 16384
    expected = torch.zeros(1 << 20, dtype=torch.uint8)
    for start, size in ((100, 8192), (32768, 4096), (65536, 100)):
        expected[start : start + size] = 7
    assert torch.equal(tier.tensor, expected)


def test_direct_and_mapped_access_to_a_file_tier_agree(make, tmp_path):
    tiers = Tiers(
        [
            TierSpec(name="fast", kind="ddr", budget_bytes=32 << 20),
            TierSpec(name="file", kind="file", budget_bytes=16 << 20, folder=tmp_path),
        ]
    )
    mapping = tiers.slow.mapping()
    if mapping.direct is None:
        pytest.skip("this file system rejects direct access")
    copies, size = make(tiers), 9 << 20
    mapped, memory = tiers.slow.empty((size,), torch.uint8), tiers.fast.empty((size,), torch.uint8)
    for value in range(1, 5):
        mapped[value :: 4 + value] = value  # changed pages of the mapping
        expected = mapped.clone()
        copies.now(memory, mapped)
        assert torch.equal(memory, expected)
        memory.add_(value)
        copies.now(mapped, memory)
        assert torch.equal(mapped, memory)


LIMITED = """
import resource, sys, torch
from dithc.engine.memory.copy_engine import CopyEngine, FileMapping
file = open(sys.argv[1], "w+b")
class Tier:
    tensor = torch.zeros(3 << 20, dtype=torch.uint8)
    def mapping(self):
        return FileMapping(self.tensor.data_ptr(), self.tensor.nbytes, file.fileno())
tier = Tier()
source = torch.full((3 << 20,), 7, dtype=torch.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))
copies = CopyEngine([tier])
try:
    copies.wait(copies.submit(tier.tensor, source, stream="offload"))
except OSError as error:
    print(error.errno)
"""


@pytest.mark.slow
def test_short_write_continues_until_the_system_error(tmp_path):
    """With a limit on file sizes the first write is short, and only the next write fails."""
    done = run_script(LIMITED, tmp_path / "file")
    assert (done.returncode, done.stdout.split()) == (0, [str(errno.EFBIG)]), done.stderr
    assert (tmp_path / "file").stat().st_size <= 1 << 20


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (torch.empty(10), torch.empty(11)),
        (torch.empty(10), torch.empty(10, dtype=torch.bfloat16)),
        (torch.empty(10, 4).t(), torch.empty(4, 10)),
        (torch.empty(4, 10), torch.empty(10, 4).t()),
        (torch.empty(10, device="meta"), torch.empty(10)),
    ],
)
def test_mismatched_or_overlapping_tensors_are_rejected(copies, target, source):
    for attempt in (lambda: copies.submit(target, source, stream="load"), lambda: copies.now(target, source)):
        with pytest.raises(ValueError, match="copy: "):
            attempt()
    memory = torch.empty(20)
    with pytest.raises(ValueError, match="overlap"):
        copies.submit(memory[5:15], memory[:10], stream="load")
    copies.now(memory[10:], memory[:10])
    assert not copies._engine.kept


def test_tensors_are_released_when_the_copy_is_done(make):
    copies = make()
    copies.inject_faults(delay_seconds=1000)
    source, target = numbers(1000), torch.empty(1000)
    references = [weakref.ref(source), weakref.ref(target)]
    ticket = copies.submit(target, source, stream="load")
    del source, target
    copies.retire()
    assert all(reference() is not None for reference in references)
    copies.inject_faults()
    wait_until(lambda: copies.is_done(ticket))
    copies.retire()
    assert [reference() for reference in references] == [None, None]


def test_many_python_threads_share_one_engine(copies):
    failures = []

    def work(value):
        for count in (1, 1000, PART // 4 + 3):
            source, target = torch.full((count,), float(value)), torch.zeros(count)
            ticket = copies.submit(target, source, stream=("load", "offload")[value % 2])
            copies.retire()
            copies.wait(ticket)
            failures.extend([value] * (not torch.equal(source, target)))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert failures == []


def test_close_cancels_pending_copies(make):
    copies = make()
    copies.inject_faults(delay_seconds=1000)
    parts = 2 + torch.get_num_threads()  # more than the team of a waiting caller begins together
    source, canceled = numbers(parts * PART, torch.uint8), []
    active, queued = (copies.submit(torch.empty_like(source), source, stream="load") for _ in range(2))
    wait_until(lambda: copies.counters().queued_bytes == (2 * parts - 1) * PART)

    def wait() -> None:
        with pytest.raises(RuntimeError, match="closed first"):
            copies.wait(queued)
        canceled.append(queued)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_until(lambda: copies.counters().queued_bytes < (2 * parts - 1) * PART)
    copies.close()
    waiting.join(MAX_SECONDS)
    assert canceled == [queued]
    with pytest.raises(RuntimeError, match="closed first"):
        copies.wait(active)
    with pytest.raises(RuntimeError, match="closed"):
        copies.submit(torch.empty(1), torch.empty(1), stream="load")
    assert (copies.counters().failed, copies.counters().queued_bytes) == (2, 0)
    copies.close()


def tasks() -> dict[str, list[Path]]:
    """Return the threads of this process by name."""
    found: dict[str, list[Path]] = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.setdefault((task / "comm").read_text().strip(), []).append(task)
    return found


def test_threads_are_pinned_sleep_when_idle_block_signals_and_end(make):
    core = discover_machine().visible_cores[-1]
    copies = make(offload_core=core.index)
    wait_until(lambda: {"dithc-load", "dithc-offload"} <= tasks().keys())
    (task,) = tasks()["dithc-offload"]
    assert os.sched_getaffinity(int(task.name)) == {core.cpus[0]}
    (free,) = tasks()["dithc-load"]
    assert os.sched_getaffinity(int(free.name)) == os.sched_getaffinity(0)
    lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
    assert int(lines["SigBlk"], 16) >> (signal.SIGINT - 1) & 1
    copies.wait(copies.submit(torch.empty(PART), numbers(PART), stream="offload"))
    wait_until(lambda: (task / "status").read_text().split("State:\t")[1][0] == "S")
    before = (task / "schedstat").read_text().split()[0]
    time.sleep(0.3)
    assert (task / "schedstat").read_text().split()[0] == before  # nanoseconds on a CPU
    copies.close()
    wait_until(lambda: not {"dithc-load", "dithc-offload"} & tasks().keys())


def test_deleted_engine_ends_copy_threads():
    copies = CopyEngine()
    ticket = copies.submit(torch.empty(PART), numbers(PART), stream="load")
    del copies, ticket
    gc.collect()
    wait_until(lambda: not {"dithc-load", "dithc-offload"} & tasks().keys())


def test_core_outside_the_cpu_mask_is_rejected():
    with pytest.raises(UserError, match="core of the load thread"):
        CopyEngine(load_core=100_000)


def test_rejected_cpus_are_logged_and_missing_threads_raise_with_fix(make, monkeypatch, caplog):
    monkeypatch.setattr(module, "_cpus", lambda cores: (8191, -1))
    make()
    assert "no threads on CPUs (8191, -1)" in caplog.text
    library = native.library()

    class WithoutThreads:
        def __getattr__(self, name):
            return getattr(library, name)

        def hc_copies_create(self, context, with_threads, cpus, handle):
            raise ValueError("a thread that the system refused")

    monkeypatch.setattr(module.native, "library", WithoutThreads)
    with pytest.raises(UserError, match="ulimit -u"):
        make()


def test_missing_library_raises_with_fix(monkeypatch):
    monkeypatch.setattr(module.native, "library", lambda: None)
    with pytest.raises(UserError, match="train without memory tiers"):
        CopyEngine()


def test_forked_child_raises_on_engine_use(make):
    copies = make()
    copies.inject_faults(delay_seconds=0.01)
    source, target = numbers(PART), torch.empty(PART)
    ticket = copies.submit(target, source, stream="load")
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        num_errors = 0
        for attempt in (
            lambda: copies.submit(target, source, stream="load"),
            lambda: copies.wait(ticket),
            lambda: copies.is_done(ticket),
            copies.drain,
            copies.counters,
        ):
            try:
                attempt()
            except RuntimeError as error:
                num_errors += "forked" in str(error)
        copies._finalizer()
        os._exit(0 if num_errors == 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    copies.wait(ticket)
    assert torch.equal(target, source)


EXIT = """
import sys, torch
from dithc.engine.memory.copy_engine import CopyEngine
copies = CopyEngine()
copies.inject_faults(delay_seconds=float(sys.argv[1]))
kept = [copies.submit(torch.empty(8 << 20), torch.ones(8 << 20), stream=s) for s in ("load", "offload") * 4]
if sys.argv[2] == "raise":
    raise KeyError("on purpose")
"""


@pytest.mark.parametrize(("delay", "end"), [(1000, "return"), (0, "raise")])
@pytest.mark.slow
def test_interpreter_exits_cleanly_during_copies(delay, end):
    done = run_script(EXIT, delay, end, PYTHONFAULTHANDLER="1")
    assert done.returncode == (end == "raise"), done.stderr
    assert "Fatal" not in done.stderr


INTERRUPTED = """
import signal, torch
from dithc.engine.memory.copy_engine import CopyEngine
copies = CopyEngine()
copies.inject_faults(delay_seconds=1000)
ticket = copies.submit(torch.empty(10), torch.ones(10), stream="load")
while copies.counters().queued_bytes:
    pass
signal.setitimer(signal.ITIMER_REAL, 0.2)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    copies.wait(ticket)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_keyboard_interrupt_ends_a_wait():
    done = run_script(INTERRUPTED)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr
