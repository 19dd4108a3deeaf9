"""Tests of training runs killed at random moments: they end, leave no processes, and resume to equal bytes."""

import os
import time
from itertools import islice
from pathlib import Path

import pytest

from tests.attack.kills import Campaign, kills
from tests.ranks import launcher, needs_launcher
from tests.sampling import commit_of

SEED = os.environ.get("DITHC_ATTACK_SEED") or commit_of("HEAD") or "0"
SAMPLE_SECONDS = 10.0  # no kill starts after this

pytestmark = [pytest.mark.slow, pytest.mark.mpi, needs_launcher]


def strike(folder: Path, count: int, *, seconds: float = float("inf")) -> None:
    if launcher().vendor != "mpich":
        pytest.skip("mpiexec is not MPICH: targets are identified by its process names")
    campaign, end = Campaign(folder), time.monotonic() + seconds
    outcomes = []
    for kill in islice(kills(SEED), count):
        outcomes.append(campaign.strike(kill))
        assert not outcomes[-1].fault, f"seed {SEED}, kill {len(outcomes) - 1}: {kill}\n{outcomes[-1].fault}"
        if time.monotonic() > end:
            break
    print(f"seed {SEED}:", *outcomes, sep="\n")


@pytest.mark.unit("kills")
@pytest.mark.alternates("whole workflows", "kills")
def test_randomly_killed_training_resumes_to_equal_checkpoint_bytes(tmp_path):
    strike(tmp_path, 200, seconds=SAMPLE_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_training_killed_200_times_resumes_to_equal_checkpoint_bytes(tmp_path):
    strike(tmp_path, 200)
