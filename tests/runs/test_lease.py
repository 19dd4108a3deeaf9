"""The lease: one trainer at a time, and a dead one does not block the next."""

import json
import os
import socket
import time
from pathlib import Path

import pytest

from dithc.runs import Lease
from dithc.runs.lease import EXPIRES_SECONDS, _boot


def test_lease_is_held_once(tmp_path: Path):
    with Lease(tmp_path) as lease:
        assert lease.holds()
        with pytest.raises(Lease.Held, match=f"process {os.getpid()} on"):
            Lease(tmp_path, wait_seconds=0).__enter__()
    assert not (tmp_path / "lease.json").exists()
    with Lease(tmp_path, wait_seconds=0):
        pass


def test_lease_of_a_dead_process_of_this_host_is_free(tmp_path):
    holder = {"host": socket.gethostname(), "boot": _boot(), "pid": 2**22 - 1, "start": "1", "id": 1}
    (tmp_path / "lease.json").write_text(json.dumps(holder))
    with Lease(tmp_path, wait_seconds=0) as lease:
        assert lease.holds()


def test_lease_of_another_host_is_free_when_it_is_no_longer_renewed(tmp_path):
    path = tmp_path / "lease.json"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1", "id": 1}))
    with pytest.raises(Lease.Held):
        Lease(tmp_path, wait_seconds=0).__enter__()
    old = time.time() - EXPIRES_SECONDS - 1
    os.utime(path, (old, old))
    with Lease(tmp_path, wait_seconds=0):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_broken_lease_file_is_free_once_it_is_no_longer_renewed(tmp_path, content):
    path = tmp_path / "lease.json"
    path.write_text(content)
    with pytest.raises(Lease.Held, match="unknown host"):
        Lease(tmp_path, wait_seconds=0).__enter__()
    old = time.time() - EXPIRES_SECONDS - 1
    os.utime(path, (old, old))
    with Lease(tmp_path, wait_seconds=0) as lease:
        assert lease.holds()


def test_holder_that_was_overtaken_knows_it_and_leaves_the_other_alone(tmp_path):
    path = tmp_path / "lease.json"
    with Lease(tmp_path) as lease:
        path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1", "id": 1}))
        assert not lease.holds()
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_of_two_that_find_a_stale_lease_one_has_it(tmp_path):
    (tmp_path / "lease.json").write_text(json.dumps({"host": "elsewhere", "pid": 1, "start": "1", "id": 1}))
    first, second = Lease(tmp_path, wait_seconds=0), Lease(tmp_path, wait_seconds=0)
    stale = {"host": "elsewhere", "pid": 1, "start": "1", "id": 1}
    assert first._put_away(stale, aside=tmp_path / "a")
    with first:
        assert not second._put_away(stale, aside=tmp_path / "b"), "the lease that was taken meanwhile is given back"
        assert first.holds()
    assert sorted(path.name for path in tmp_path.iterdir()) == []
