"""Modules of others in a loop of one's own: gradients of the joined batch, ZeRO-1 and going on to the bit, errors for bad use."""

from pathlib import Path

import pytest

from tests.comm.test_group import run_program
from tests.train.own_program import SCENES
from tests.train.strategies.test_strategies import several_ranks

PROGRAM = Path(__file__).with_name("own_program.py")


@pytest.mark.parametrize("ranks", [2])
class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    def test_modules_of_others_train_on_ranks(self, tmp_path, ranks):
        done = run_program(str(PROGRAM), ranks, str(ranks), str(tmp_path), *SCENES)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of {ranks} is done" for rank in range(ranks)]
