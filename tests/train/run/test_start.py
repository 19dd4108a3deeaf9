"""Tests of fine-tuning from another run or a file, and of re-import of exported weights."""

import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dithc.cli import main
from dithc.comm import Group
from dithc.config import training
from dithc.log import UserError
from dithc.model import DiT, DiTConfig
from dithc.runs import Manifest, Store
from dithc.sealed import seal, unseal
from dithc.tensors import read_external
from dithc.train import export, train
from dithc.train.job.job import DONE
from tests.train.conftest import SMALL


@pytest.fixture
def base(job):
    one = job("base", until=4)
    assert train(one, Group()) == DONE
    return one


def tune_run(job, kind="ema"):
    return job().run.model_copy(update={"init": "base", "init_weights": kind})


def initial(job) -> dict[str, torch.Tensor]:
    store, _ = Store.of_run(job.out)
    return load_file(store.open(0).weights("raw"))


@pytest.mark.parametrize("kind", ["ema", "raw"])
def test_finetuning_starts_from_the_weights_it_is_told(job, base, kind):
    tuned = job("tuned", until=1, init=base.out, run=tune_run(job, kind))
    train(tuned, Group())
    store, step = Store.of_run(base.out)
    expected = load_file(store.open(step).weights(kind))
    assert all(torch.equal(value, expected[name]) for name, value in initial(tuned).items())
    assert str(base.out) in Manifest.read(tuned.out).inputs


def test_finetuning_of_other_blocks_starts_from_them_and_from_no_others(job):
    model = {"preset": "ModernDiT-S/2", "qk_norm": True, "hidden_size": 32, "depth": 2, "num_heads": 2}
    before = job("before", until=2, model=model)
    assert train(before, Group()) == DONE
    run = before.run.model_copy(update={"init": "before", "guide": training.Guide(by="start")})
    tuned = job("tuned", until=2, init=before.out, run=run)
    assert train(tuned, Group()) == DONE
    expected = load_file(Store.of_run(before.out)[0].open(2).weights("ema"))
    assert all(torch.equal(value, expected[name]) for name, value in initial(tuned).items())
    with pytest.raises(UserError, match="block type"):
        train(job("other", until=1, init=before.out, run=tune_run(job)), Group())


def test_start_does_not_depend_on_where_results_stand(job, base, tmp_path):
    moved = tmp_path / "elsewhere" / "deeper" / "step.json"
    content = Manifest.read(base.out)
    entries = Manifest.entries(moved.parent, [base.out.parent / entry["path"] for entry in content.files])
    again = Manifest(stage="train", name=content.name, spec=content.spec, inputs=content.inputs, files=entries)
    assert again.digest == content.digest


def test_changed_channels_and_codec_are_reported(job, base, make_latents, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    other = make_latents(tmp_path / "five", channels=5, codec="another-codec")
    tuned = job("tuned", until=1, init=base.out, run=tune_run(job), latents=other)
    train(tuned, Group())
    assert "trained on latents of codec test-codec, these are of another-codec" in caplog.text
    assert "patch embedding: first 4 channels kept, 1 initialized to zero" in caplog.text


def test_finetuning_without_its_start_is_refused(job):
    with pytest.raises(UserError, match="the manifest of run base"):
        job(run=tune_run(job))


@pytest.mark.parametrize("weights", ["ema", "raw"])
@pytest.mark.parametrize("layout", ["safetensors", "official"])
def test_exported_weights_are_read_back_as_a_start(job, base, tmp_path, weights, layout):
    out = tmp_path / ("weights.safetensors" if layout == "safetensors" else "weights.pt")
    words = ["export", "--checkpoint", str(base.out), "--weights", weights, "--format", layout, "--out", str(out)]
    assert main(words) == 0
    run = job().run.model_copy(update={"init_file": str(out), "init_weights": weights})
    tuned = job("tuned", until=1, run=run)
    train(tuned, Group())
    store, step = Store.of_run(base.out)
    expected = load_file(store.open(step).weights(weights))
    assert all(torch.equal(value, expected[name]) for name, value in initial(tuned).items())


def test_training_starts_from_shards_of_diffusers(job, base, tmp_path):
    out = tmp_path / "transformer"
    export(base.out, weights="raw", layout="diffusers", out=out)
    whole = out / "diffusion_pytorch_model.safetensors"
    state = load_file(whole)
    whole.unlink()
    for number in range(2):
        part = {f"_orig_mod.{name}": state[name] for name in sorted(state)[number::2]}
        save_file(part, whole.with_name(f"{whole.stem}-{number + 1:05d}-of-00002.safetensors"))
    tuned = job("tuned", until=1, run=job().run.model_copy(update={"init_file": str(out)}))
    assert train(tuned, Group()) == DONE
    store, step = Store.of_run(base.out)
    expected = load_file(store.open(step).weights("raw"))
    assert all(torch.allclose(value, expected[name]) for name, value in initial(tuned).items())


@pytest.mark.slow
def test_start_from_a_file_says_that_its_codec_is_unknown(job, base, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "weights.safetensors"
    export(base.out, weights="ema", layout="safetensors", out=path)
    train(job("tuned", until=1, run=job().run.model_copy(update={"init_file": str(path)})), Group())
    assert "does not specify the codec" in caplog.text


@pytest.mark.parametrize("layout", ["safetensors", "official", "raw official", "diffusers", "checkpoint"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": {"predict": "flow"}}, "predict flow\n"),
        ({"model": SMALL | {"learn_sigma": False, "position": "rope", "norm": "rms"}}, "norm rms, position rope\n"),
    ],
)
def test_file_of_a_network_of_another_kind_is_no_start_although_names_and_shapes_fit(
    job, tmp_path, layout, changes, words
):
    one = job("other", until=1, **{"model": SMALL | {"learn_sigma": False}} | changes)
    train(one, Group())
    if layout == "checkpoint":
        store, step = Store.of_run(one.out)
        path = store.open(step).weights("raw")
    elif layout != "safetensors" and "objective" not in changes:
        return  # these blocks are not exported to other programs
    else:
        weights, layout = ("raw", "official") if layout == "raw official" else ("ema", layout)
        path = tmp_path / {"safetensors": "w.safetensors", "official": "w.pt", "diffusers": "transformer"}[layout]
        export(one.out, weights=weights, layout=layout, out=path)
    run = job().run.model_copy(update={"init_file": str(path), "model": training.Model(**SMALL, learn_sigma=False)})
    with pytest.raises(UserError, match=rf"another type of network\n.*got: +{words}"):
        train(job("tuned", until=1, run=run), Group())


def test_files_of_the_original_network_say_nothing_that_others_do_not_know(base, tmp_path):
    export(base.out, weights="ema", layout="safetensors", out=tmp_path / "w.safetensors")
    store, step = Store.of_run(base.out)
    for path in (tmp_path / "w.safetensors", store.open(step).weights("ema")):
        assert read_external(path)[1] == {"format": "pt"}


def test_model_loads_exported_weights_strictly(base, tmp_path):
    facts = export(base.out, weights="ema", layout="safetensors", out=tmp_path / "weights.safetensors")
    model = DiT(DiTConfig(**facts["model"]))
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"), strict=True)
    assert facts["step"] == 4


def test_official_export_offers_both_sets_of_weights(base, tmp_path):
    export(base.out, weights="ema", layout="official", out=tmp_path / "weights.pt")
    content = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert set(content) == {"model", "ema"}
    assert set(content["model"]) == set(content["ema"])


def test_export_to_an_unwritable_place_is_an_error(base, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="could not be written"):
        export(base.out, weights="ema", layout="safetensors", out=tmp_path / "file" / "weights.safetensors")


@pytest.mark.parametrize("name", ["broken.pt", "broken.safetensors"])
def test_broken_weights_file_is_refused(job, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"not weights at all")
    with pytest.raises(UserError, match="cannot be read"):
        train(job(run=job().run.model_copy(update={"init_file": str(path)})), Group())


def test_latents_of_another_codec_than_the_stores_are_refused_on_resume(job, base):
    """A store is found by the digest of its latents; this store was filled from other latents."""
    store, step = Store.of_run(base.out)
    path = store.path(step) / "checkpoint.json"
    content = unseal(path.read_text())
    content["meta"]["codec"] = "another-codec"
    path.write_text(seal(content))
    with pytest.raises(UserError, match=r"codec differs[\s\S]*another-codec[\s\S]*test-codec"):
        train(job("base", until=6), Group())
    assert store.steps()[-1] == step


@pytest.mark.slow
def test_finetuning_on_another_codec_of_as_many_channels_is_allowed_and_said(job, base, make_latents, tmp_path, caplog):
    """Each dataset has its own codec: weights are loaded, and the log names the codec of their training."""
    other = make_latents(tmp_path / "other", codec="another-codec")
    assert train(job("tuned", until=1, init=base.out, run=tune_run(job), latents=other), Group()) == DONE
    assert "trained on latents of codec test-codec, these are of another-codec" in caplog.text


def test_damaged_start_is_refused_with_the_folder_to_delete(job, base):
    store, step = Store.of_run(base.out)
    shutil.rmtree(store.path(step))
    with pytest.raises(
        UserError, match=rf"(?s)checkpoint {store.path(step)} is damaged.*delete this folder.*{base.out} is incomplete"
    ):
        train(job("tuned", until=1, init=base.out, run=tune_run(job)), Group())


def test_missing_weights_file_is_refused(job, tmp_path):
    with pytest.raises(UserError, match="init_file"):
        train(job(run=job().run.model_copy(update={"init_file": str(tmp_path / "nothing.pt")})), Group())
