"""Leases: one writer at a time, and a dead process does not block the next."""

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from dithc.core.artifacts import Lease, lease
from dithc.core.artifacts.lease import EXPIRES_SECONDS, _boot

ELSEWHERE = {"host": "elsewhere", "pid": 1, "start": "1", "id": 1}


@pytest.fixture
def quick(monkeypatch):
    """Speed up all clocks."""
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(lease, "OBSERVED_SECONDS", 0.6)
    monkeypatch.setattr(lease, "EXPIRES_SECONDS", 2.0)


def test_lease_is_held_once(tmp_path: Path):
    with Lease(tmp_path) as lease:
        assert lease.holds()
        with pytest.raises(Lease.Held, match=f"process {os.getpid()} on"):
            Lease(tmp_path, wait_seconds=0).__enter__()
    assert not (tmp_path / "lease.json").exists()
    with Lease(tmp_path, wait_seconds=0):
        pass


def test_next_lease_removes_only_temporary_files_of_killed_processes(tmp_path):
    dead = {"host": socket.gethostname(), "boot": _boot(), "pid": 2**22 - 1, "start": "1", "id": 1}
    alive = Lease(tmp_path).identity
    for name in (".lease.vm.4194303.1", "lease.json"):
        (tmp_path / name).write_text(json.dumps(dead))
    kept = {".lease.vm.1.2": json.dumps(alive), ".lease.txt": "rent", ".lease.json": json.dumps({"id": 1})}
    for name, text in kept.items():
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1, 1) if text != json.dumps(alive) else None)
    with Lease(tmp_path, wait_seconds=0):
        assert {path.name for path in tmp_path.iterdir()} == {*kept, "lease.json"}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", json.dumps(ELSEWHERE)])
def test_expired_remote_and_broken_leases_are_free(tmp_path, quick, content):
    path = tmp_path / "lease.json"
    path.write_text(content)
    with pytest.raises(Lease.Held, match="elsewhere" if "elsewhere" in content else "unknown host"):
        Lease(tmp_path, wait_seconds=0).__enter__()
    old = time.time() - EXPIRES_SECONDS - 1
    os.utime(path, (old, old))
    with Lease(tmp_path, wait_seconds=0) as lease:
        assert lease.holds()


def test_lease_of_a_different_holder_is_preserved(tmp_path):
    path = tmp_path / "lease.json"
    with Lease(tmp_path) as lease:
        path.write_text(json.dumps(ELSEWHERE))
        assert not lease.holds()
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_one_of_two_processes_acquires_a_stale_lease(tmp_path):
    (tmp_path / "lease.json").write_text(json.dumps(ELSEWHERE))
    first, second = Lease(tmp_path, wait_seconds=0), Lease(tmp_path, wait_seconds=0)
    assert first._remove_stale(ELSEWHERE, target=tmp_path / "a")
    with first:
        assert not second._remove_stale(ELSEWHERE, target=tmp_path / "b"), (
            "the lease that was taken meanwhile is given back"
        )
        assert first.holds()
    assert sorted(path.name for path in tmp_path.iterdir()) == []


def test_unrenewed_lease_with_a_future_time_is_free_after_observation(tmp_path, quick):
    path = tmp_path / "lease.json"
    path.write_text(json.dumps(ELSEWHERE))
    later = time.time() + 3600
    os.utime(path, (later, later))  # the clock was set back
    with Lease(tmp_path, wait_seconds=0) as held:
        assert held.holds()


@pytest.mark.parametrize("offset", [-3600, 3600])
def test_renewed_lease_is_held_with_wrong_clocks(tmp_path, quick, offset):
    path = tmp_path / "lease.json"
    path.write_text(json.dumps(ELSEWHERE))
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(0.05):
            now = time.time() + offset
            os.utime(path, (now, now))

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(Lease.Held, match="process 1 on elsewhere"):
            Lease(tmp_path, wait_seconds=0).__enter__()
    finally:
        stop.set()
        thread.join()


def test_lease_of_a_replaced_folder_is_stored_next_to_the_folder(tmp_path):
    folder = tmp_path / "out"
    with Lease.for_folder(folder) as held:
        assert not folder.exists()
        with pytest.raises(Lease.Held, match=f"process {os.getpid()} on .* works on .*out"):
            Lease.for_folder(folder, wait_seconds=0).__enter__()
        assert held.holds()
    assert list(tmp_path.iterdir()) == []


def test_lease_is_inside_a_folder_with_a_read_only_parent(tmp_path, monkeypatch):
    folder = tmp_path / "mounted"
    folder.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with Lease.for_folder(folder) as held:
        assert held.path.parent == folder
    with Lease.for_folder(tmp_path / "new") as held:
        assert held.path.parent == tmp_path
