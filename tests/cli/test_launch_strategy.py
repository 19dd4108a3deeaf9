"""`dithc launch --strategy` derives ranks from the dies or core clusters of the machine."""

import json
import sys
from types import SimpleNamespace

import pytest

from dithc import hardware
from dithc.cli import launch, main

SAY = """
import json, os, sys
names = ("OMP_NUM_THREADS", "DITHC_EXPECTED_RANKS")
json.dump({name: os.environ[name] for name in names}, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize(("strategy", "ranks"), [("cftp", 1), ("dp", 1), ("dp+tp", 1)])
def test_a_machine_of_one_die_of_one_cluster_starts_one_rank_without_a_launcher(monkeypatch, tmp_path, strategy, ranks):
    monkeypatch.setattr(hardware, "discover", lambda: node(dies=1, clusters=1))
    out = tmp_path / "said.json"
    words = ["launch", "--launcher", "mpiexec", "--strategy", strategy, "--node-cpus", "2", "--"]
    assert main([*words, sys.executable, "-c", SAY, str(out)]) == 0
    assert json.loads(out.read_text()) == {"OMP_NUM_THREADS": "2", "DITHC_EXPECTED_RANKS": str(ranks)}


@pytest.mark.parametrize(("strategy", "ranks"), [("cftp", 8), ("dp", 32), ("dp+tp", 32)])
def test_ranks_are_counted_for_all_nodes(monkeypatch, strategy, ranks):
    monkeypatch.setattr(hardware, "discover", lambda: node(dies=4, clusters=4))
    assert launch._counted(SimpleNamespace(strategy=strategy, nodes=2)) == (ranks, 16)


def test_a_rank_gets_its_share_of_the_cores_where_nobody_gave_their_number(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "discover", lambda: node(dies=1, clusters=4))
    out = tmp_path / "said.json"
    assert main(["launch", "--strategy", "cftp", "--", sys.executable, "-c", SAY, str(out)]) == 0
    assert json.loads(out.read_text()) == {"OMP_NUM_THREADS": "4", "DITHC_EXPECTED_RANKS": "1"}


def node(*, dies: int, clusters: int):
    """Return a node with the given dies and core clusters per die, with one core per cluster."""
    return SimpleNamespace(
        visible_cores=[SimpleNamespace(die=n // clusters, cluster=n) for n in range(dies * clusters)]
    )
