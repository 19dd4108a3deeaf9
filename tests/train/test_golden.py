"""Ten losses pin the mathematics of training: a refactor leaves them identical, a new kernel inside the tolerance.

Regenerate, only for an intended change of mathematics, with

    DITHC_WRITE_GOLDEN=1 OMP_NUM_THREADS=1 .venv/bin/pytest tests/train/test_golden.py

and say in the commit what changed and why.
"""

import json
import os
from pathlib import Path

import pytest

from dithc.comm import Group
from dithc.log import read_metrics
from dithc.runs import Store
from dithc.train import train

GOLDEN = Path(__file__).parent / "golden_losses.json"
STEPS = 10
# Unit roundoff of fp32, times the longest dot product (the MLP's width, 4 x 32), times the linear layers that an activation
# passes one after another (patch, 2 blocks of 4, final): the worst case of the forward pass to first order. Updates
# carry an error on by lr (1e-3) times its gradient, ten times: far below.
TOLERANCE = 2**-24 * 128 * 10


def test_ten_losses_are_those_on_record(job):
    one = job("golden", until=STEPS, steps=STEPS, micro_batch=4, warmup_steps=3, checkpoint_every=STEPS)
    train(one, Group())
    losses = [row["loss"] for row in read_metrics(Store.of_run(one.out)[0].folder / "metrics")]
    if os.environ.get("DITHC_WRITE_GOLDEN"):
        command = "DITHC_WRITE_GOLDEN=1 OMP_NUM_THREADS=1 .venv/bin/pytest tests/train/test_golden.py"
        GOLDEN.write_text(json.dumps({"regenerate": command, "losses": losses}, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())["losses"]
    assert len(golden) == STEPS
    assert losses == pytest.approx(golden, rel=TOLERANCE)
