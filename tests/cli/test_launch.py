"""`dithc launch` derives ranks from the dies or core clusters of the machine, and reports the cause of a kill."""

import json
import sys
from types import SimpleNamespace

import pytest

from dithc.cli import launch, main
from dithc.engine import hardware

SAY = """
import json, os, sys
names = ("OMP_NUM_THREADS", "DITHC_EXPECTED_RANKS")
json.dump({name: os.environ[name] for name in names}, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize(
    ("clusters", "arguments", "cpus"),
    [(1, ["--launcher", "mpiexec", "--strategy", "dp", "--cpus-per-node", "2"], 2), (4, ["--strategy", "cftp"], 4)],
)
def test_single_die_machine_starts_one_rank_with_all_cores(monkeypatch, tmp_path, clusters, arguments, cpus):
    monkeypatch.setattr(hardware, "discover_machine", lambda: node(dies=1, clusters=clusters))
    out = tmp_path / "said.json"
    assert main(["launch", *arguments, "--", sys.executable, "-c", SAY, str(out)]) == 0
    assert json.loads(out.read_text()) == {"OMP_NUM_THREADS": str(cpus), "DITHC_EXPECTED_RANKS": "1"}


@pytest.mark.parametrize(("strategy", "ranks"), [("cftp", 8), ("dp", 32), ("dp+tp", 32)])
def test_ranks_are_counted_for_all_nodes(monkeypatch, strategy, ranks):
    monkeypatch.setattr(hardware, "discover_machine", lambda: node(dies=4, clusters=4))
    assert launch._ranks_and_cores(SimpleNamespace(strategy=strategy, nodes=2)) == (ranks, 16)


def node(*, dies: int, clusters: int):
    """Return a node with the given dies and core clusters per die, with one core per cluster."""
    return SimpleNamespace(
        visible_cores=[SimpleNamespace(die=n // clusters, cluster=n) for n in range(dies * clusters)]
    )


DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("kills", "reason"), [([3, 4], "control group had no memory left"), ([3, 3], "a signal from outside")]
)
def test_killed_command_is_reported_with_the_reason(monkeypatch, capsys, kills, reason):
    counts = iter(kills)
    monkeypatch.setattr(hardware.Limits, "out_of_memory_kills", staticmethod(lambda: next(counts)))
    assert main(["launch", "--", sys.executable, "-c", DIES]) == 137
    output = capsys.readouterr().err
    fixes = ("`micro_batch_size`", "`activation_checkpointing: block`", "fast_memory_gib")
    assert all(arguments in output for arguments in ("was ended by SIGKILL", reason, *fixes))
