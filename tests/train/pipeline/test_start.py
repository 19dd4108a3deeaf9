"""Tests of fine-tuning from another run."""

import logging
import shutil

import pytest
import torch

from dithc.core.artifacts import Manifest
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.logging import UserError
from dithc.engine.comm import Group
from dithc.train import train
from dithc.train.job import DONE
from tests.train.conftest import checkpoint, store_of, weights_of


def tune_run(job, kind="ema"):
    return job().run.updated(init_from_run="base", init_weights=kind)


def assert_started(job, expected: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(value, expected[name]) for name, value in weights_of(job, "raw", step=0).items())


@pytest.mark.parametrize("kind", ["ema", "raw"])
def test_finetuning_starts_from_the_configured_weights(job, base, kind):
    tuned = job("tuned", until=1, init=base.paths.out, run=tune_run(job, kind))
    train(tuned, Group())
    assert_started(tuned, weights_of(base, kind))
    assert str(base.paths.out) in Manifest.read(tuned.paths.out).inputs


def test_finetuning_of_modern_blocks_requires_the_same_block_type(job):
    model = {"preset": "ModernDiT-S/2", "qk_norm": True, "hidden_size": 32, "depth": 2, "num_heads": 2}
    before = job("before", until=2, model=model)
    assert train(before, Group()) == DONE
    run = before.run.updated(init_from_run="before")
    tuned = job("tuned", until=2, init=before.paths.out, run=run)
    assert train(tuned, Group()) == DONE
    assert_started(tuned, weights_of(before))
    with pytest.raises(UserError, match="block type"):
        train(job("other", until=1, init=before.paths.out, run=tune_run(job)), Group())


def test_finetuning_reports_changed_channels_and_codec(job, base, make_latents, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    other = make_latents(tmp_path / "five", channels=5, codec="another-codec")
    tuned = job("tuned", until=1, init=base.paths.out, run=tune_run(job), latents=other)
    train(tuned, Group())
    assert "trained on latents of codec test-codec, these are of another-codec" in caplog.text
    assert "patch embedding: first 4 channels kept, 1 initialized to zero" in caplog.text


def test_finetuning_without_the_source_manifest_is_rejected(job):
    with pytest.raises(UserError, match="the manifest of run base"):
        job(run=tune_run(job))


def test_resume_rejects_latents_of_a_codec_different_from_the_store(job, base):
    """A store is found by the digest of its latents; this store was filled from other latents."""
    path = checkpoint(base).folder / "checkpoint.json"
    content = load_checksummed(path.read_text())
    content["meta"]["codec"] = "another-codec"
    path.write_text(dump_checksummed(content))
    with pytest.raises(UserError, match=r"codec differs[\s\S]*another-codec[\s\S]*test-codec"):
        train(job("base", until=6, lr=0.01), Group())
    assert store_of(base).steps()[-1] == 2


def test_damaged_source_checkpoint_is_rejected_with_the_folder_to_delete(job, base):
    folder = checkpoint(base).folder
    shutil.rmtree(folder)
    with pytest.raises(
        UserError, match=rf"(?s)checkpoint {folder} is damaged.*delete this folder.*{base.paths.out} is incomplete"
    ):
        train(job("tuned", until=1, init=base.paths.out, run=tune_run(job)), Group())
