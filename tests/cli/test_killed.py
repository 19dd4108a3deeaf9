"""`dithc launch` reports the cause and fix for a killed command, which cannot report itself."""

import sys

import pytest

from dithc import hardware
from dithc.cli import main

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("kills", "why"), [([3, 4], "control group had no memory left"), ([3, 3], "a signal from outside")]
)
def test_a_command_that_is_killed_is_named_with_the_reason(monkeypatch, capsys, kills, why):
    counts = iter(kills)
    monkeypatch.setattr(hardware.Limits, "out_of_memory_kills", staticmethod(lambda: next(counts)))
    assert main(["launch", "--", sys.executable, "-c", DIES]) == 137
    said = capsys.readouterr().err
    for words in ("was ended by SIGKILL", why, "`micro_batch`", "`recompute: block`", "fast_budget_gib"):
        assert words in said
