"""Regression test of ten losses: a refactoring leaves them identical, a new kernel stays within the tolerance.

Regenerate them only for an intended change of the mathematics, with

    DITHC_WRITE_GOLDEN=1 OMP_NUM_THREADS=1 .venv/bin/pytest tests/train/test_golden.py

and explain the change in the commit.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from dithc.engine.comm import Group
from dithc.engine.hcops.backend import backend_of
from dithc.train import train
from dithc.train.step import Trainer
from tests.train.conftest import rows

GOLDEN = Path(__file__).parent / "golden_losses.json"
STEPS = 10
# Unit roundoff of fp32, times the longest dot product (the MLP's width, 4 x 32), times the consecutive linear layers of
# an activation (patch, 2 blocks of 4, final): the worst case of the forward pass to first order. Updates propagate an
# error by lr (1e-3) times its gradient, ten times: far below.
TOLERANCE = 2**-24 * 128 * 10


def losses_of(job, store, **changes):
    one = job(store, **changes)
    train(one, Group())
    return [row["loss"] for row in rows(one)]


def ten_losses(job, store):
    return losses_of(job, store, until=STEPS, steps=STEPS, micro_batch_size=4, warmup_steps=3, checkpoint_every=STEPS)


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
def test_ten_losses_match_the_golden_record(job, backend, use_backend):
    use_backend(backend)
    losses = ten_losses(job, "golden")
    if os.environ.get("DITHC_WRITE_GOLDEN") and backend == "reference":
        command = "DITHC_WRITE_GOLDEN=1 OMP_NUM_THREADS=1 .venv/bin/pytest tests/train/test_golden.py"
        GOLDEN.write_text(json.dumps({"regenerate": command, "losses": losses}, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())["losses"]
    assert len(golden) == STEPS
    assert losses == pytest.approx(golden, rel=TOLERANCE)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["numba", "c"])
def test_ten_losses_are_bit_reproducible(job, backend, threads, use_backend):
    use_backend(backend)
    torch.set_num_threads(threads)
    assert ten_losses(job, "first") == ten_losses(job, "second")


def test_run_uses_the_configured_backend_and_restores_the_selection(job, monkeypatch, use_backend):
    use_backend("numba")
    served = set()
    original = Trainer.step

    def step(self, *given, **more):
        served.add(backend_of("linear"))
        return original(self, *given, **more)

    monkeypatch.setattr(Trainer, "step", step)
    plain, named = losses_of(job, "plain"), losses_of(job, "named", backend="reference")
    assert served == {"numba", "reference"}
    assert named == pytest.approx(plain, rel=TOLERANCE)
    assert backend_of("linear") == "numba"
