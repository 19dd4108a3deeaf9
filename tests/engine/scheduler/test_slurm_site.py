"""Tests of site properties from recorded Slurm output, and of the profile written from them."""

import socket
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from dithc.config import load_machine
from dithc.engine.comm.process_group.islands import _opponents
from dithc.engine.doctor.profile_check import check_ranks
from dithc.engine.doctor.profile_writer import profile_text
from dithc.engine.scheduler import SchedulerJob, explain_blocked, explain_end, slurm_site
from dithc.engine.scheduler.slurm_site import minutes_of, read_site

CONFIG = "AccountingStorageType   = accounting_storage/slurmdbd\nJobRequeue = 1\nMinJobAge  = 300 sec\nSLURM_VERSION = 22.05.8\n"
PARTITIONS = (
    "PartitionName=cpu Default=YES MaxNodes=4 MaxTime=1-12:30:00 State=UP PreemptMode=REQUEUE MaxMemPerNode=UNLIMITED\n"
    "PartitionName=long Default=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED State=DOWN PreemptMode=OFF MaxMemPerNode=64000\n"
)
NODES = (
    "NodeName=n1 CPUEfctv=76 CPUTot=76 RealMemory=256000 Sockets=2 State=IDLE Partitions=cpu,long\n"
    "NodeName=n2 CPUEfctv=76 CPUTot=76 RealMemory=256000 Sockets=2 State=DOWN*+DRAIN Partitions=cpu\n"
    "NodeName=n3 CPUEfctv=40 CPUTot=40 RealMemory=128000 Sockets=2 State=MIXED Partitions=cpu\n"
)
SITE = read_site(CONFIG, PARTITIONS, NODES, mpi="MPI plugin types are...\n\tpmix\n\tpmi2\n\tnone\n", accounting=True)


def test_partitions_nodes_and_limits_are_read() -> None:
    cpu, long = SITE.partitions
    assert (cpu.is_default, cpu.max_walltime_minutes, cpu.max_nodes) == (True, 36 * 60 + 30, 4)
    assert (long.is_up, long.max_walltime_minutes, long.max_nodes, long.max_memory_mb) == (False, None, None, 64000)
    assert [(kind.names, kind.cpus, kind.is_up) for kind in cpu.kinds] == [
        (("n1", "n2"), 76, True),
        (("n3",), 40, True),
    ]
    assert SITE.mpi == ("pmix", "pmi2", "none")
    assert SITE.min_job_age_seconds == 300
    assert SITE.partition(None) == cpu
    assert SITE.partition("nowhere") is None


@pytest.mark.parametrize(
    ("text", "minutes"), [("01:00:00", 60), ("2-00:00:00", 2880), ("UNLIMITED", None), ("00:30:59", 30)]
)
def test_slurm_times_are_converted_to_minutes(text: str, minutes: int | None) -> None:
    assert minutes_of(text) == minutes


def test_profile_uses_the_smallest_node_and_survives_round_trip(tmp_path: Path) -> None:
    text, notes = profile_text("site", SITE, SITE.partitions[0], dies=4, nodes=2, account="acc")
    (tmp_path / "config.yaml").write_text(text)
    machine, content = load_machine(tmp_path)
    assert (machine.ranks_per_node, machine.cpus_per_rank, machine.cpus_per_node) == (4, 10, 40)
    assert (machine.scheduler, machine.nodes, machine.memory_per_node_mb) == ("slurm", 2, 128_000)
    assert (machine.max_walltime_minutes, machine.stop_before_walltime) == (2190, True)
    assert content["default-resources"]["slurm_account"] == "acc"
    assert content["slurm-status-command"] == "squeue", "finished jobs stay 300 s in the queue"
    assert any("nodes differ" in note for note in notes)


def test_short_job_age_selects_sacct_if_accounting_is_available(tmp_path: Path) -> None:
    short = replace(SITE, min_job_age_seconds=2)
    for site, command in ((short, "sacct"), (replace(short, accounting=False), "squeue")):
        text, _ = profile_text("s", site, site.partitions[0], dies=3, nodes=1, account=None)
        (tmp_path / "config.yaml").write_text(text)
        machine, content = load_machine(tmp_path)
        assert content["slurm-status-command"] == command
        assert machine.ranks_per_node == 1, "40 CPUs are not shared by 3 dies"


PROPERTIES = {"host": "n1", "size": 2, "token_seen": True, "cpus": 10, "time": 100.0, "huge_pages": "madvise"}
PROPERTIES |= {"rank": 0, "product_gflops": 800.0, "copy_gbs": 40.0, "links": {}}


def test_matching_trial_ranks_have_only_ok_findings() -> None:
    found = check_ranks(
        [PROPERTIES, {**PROPERTIES, "host": "n2"}], location="2 nodes", ranks=2, cpus=10, began=99.0, ended=101.0
    )
    assert {finding.level for finding in found} == {"ok"}


@pytest.mark.parametrize(
    ("change", "topic", "level"),
    [
        ({"size": 1}, "MPI", "error"),
        ({"token_seen": False}, "files", "error"),
        ({"product_gflops": 500.0}, "products", "warning"),
        ({"copy_gbs": 20.0}, "copies", "warning"),
        ({"cpus": 4}, "cores", "warning"),
        ({"time": 500.0}, "clock", "warning"),
        ({"huge_pages": "never"}, "huge pages", "warning"),
    ],
)
def test_each_node_problem_is_reported_with_fix(change: dict[str, object], topic: str, level: str) -> None:
    found = check_ranks([PROPERTIES, PROPERTIES | change], location="n", ranks=2, cpus=10, began=99.0, ended=101.0)
    assert {finding.topic: finding.level for finding in found}[f"n: {topic}"] == level
    assert all(finding.fix for finding in found if finding.level != "ok")


BLOCKED = ("PartitionTimeLimit", "ReqNodeNotAvail, UnavailableNodes:n1", "JobHeldUser")
LIMITS = ("QOSMaxWallDurationPerJobLimit", "AssocMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit")


@pytest.mark.parametrize("reason", [*BLOCKED, *LIMITS])
def test_permanent_pending_reasons_are_explained_and_temporary_are_not(reason: str) -> None:
    assert explain_blocked(SchedulerJob(id="1", state="PENDING", reason=reason)) is not None
    assert explain_blocked(SchedulerJob(id="1", state="RUNNING", reason=reason)) is None
    for passes in ("Priority", "Resources", "BeginTime", "Dependency", "QOSMaxJobsPerUserLimit"):
        assert explain_blocked(SchedulerJob(id="1", state="PENDING", reason=passes)) is None


def test_every_job_end_state_has_a_cause_and_fix() -> None:
    for state in ("TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "NODE_FAIL", "FAILED", "PREEMPTED"):
        cause, fix = explain_end(SchedulerJob(id="1", state=state, status=1))
        assert cause
        assert fix
    assert "another training" in explain_end(SchedulerJob(id="1", state="FAILED", status=76))[0]


def node_line(state: str, port: int) -> str:
    return f"NodeName=n1 State={state} NodeAddr=127.0.0.1 Port={port}"


def test_down_and_unresponsive_nodes_are_reported_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        shown = {
            "up": node_line("ALLOCATED", port),
            "down": node_line("DOWN+DRAIN", port),
            "silent": node_line("ALLOCATED*", port),
            "unknown": None,
        }
        monkeypatch.setattr(slurm_site, "query", lambda line: shown.get(line[-1]))
        assert slurm_site.lost(shown) == ["down", "silent"], "nodes without a state count as up"
    monkeypatch.setattr(slurm_site, "query", lambda line: node_line("ALLOCATED", port))
    assert slurm_site.lost(["n1"]) == ["n1"], "its daemon does not answer"


def test_slow_links_name_the_node_that_all_slow_pairs_include():
    hosts = ["n1", "n2", "n3", "n4"]
    rates = {frozenset(pair): 2.0 if "n3" in pair else 10.0 for pair in combinations(hosts, 2)}
    rows = [
        PROPERTIES
        | {"host": host, "rank": rank, "size": 4}
        | {"links": {peer: rates[frozenset((host, other))] for peer, other in enumerate(hosts) if other != host}}
        for rank, host in enumerate(hosts)
    ]
    found = check_ranks(rows, location="4 nodes", ranks=4, cpus=10, began=99.0, ended=101.0)
    (links,) = [finding for finding in found if finding.topic == "4 nodes: links"]
    assert links.level == "warning"
    assert "n1 - n3: 2; n2 - n3: 2; n3 - n4: 2; all slow pairs include n3" in links.text


def test_opponents_meet_once_and_two_at_a_time():
    for count in range(1, 9):
        turns = list(zip(*(_opponents(player, count) for player in range(count)), strict=True))
        assert all(
            turn[opponent] == player for turn in turns for player, opponent in enumerate(turn) if opponent is not None
        )
        met = [sorted(turn[player] for turn in turns if turn[player] is not None) for player in range(count)]
        assert met == [[other for other in range(count) if other != player] for player in range(count)]
