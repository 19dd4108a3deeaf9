"""Tests of weight export and import: round trip through diffusers, files of other programs, and no code execution."""

import json
import logging
import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from dithc.cli import main
from dithc.core.artifacts import outputs
from dithc.core.logging import UserError
from dithc.core.tensor_files import read_external
from dithc.engine.comm import Group
from dithc.model import DiT, DiTConfig
from dithc.train import export, train
from dithc.train.checkpoints.weights import read_weights
from dithc.train.job import DONE
from tests.train.conftest import SMALL, checkpoint, weights_of


@pytest.fixture
def folder(base, tmp_path):
    """Return the averaged weights of `base`, exported for diffusers."""
    out = tmp_path / "transformer"
    command = ["export", "--checkpoint", str(base.paths.out), "--format", "diffusers", "--out", str(out)]
    assert main(command) == 0
    return out


def model_of(one, kind: str = "ema") -> DiT:
    model = DiT(DiTConfig(**checkpoint(one).meta["model"]))
    model.load_state_dict(weights_of(one, kind))
    return model


def started_from(job, path: Path, **changes: object) -> dict[str, torch.Tensor]:
    """Return the weights at step 0 of a training run that starts from `path`."""
    tuned = job("tuned", until=1, run=job(**changes).run.updated(init_from_file=str(path)))
    assert train(tuned, Group()) == DONE
    return weights_of(tuned, "raw", step=0)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_diffusers_loads_the_export_and_matches_checkpoint_outputs(base, folder, caplog, monkeypatch):
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    monkeypatch.setattr(logging.getLogger("diffusers"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="diffusers")
    options = {"local_files_only": True, "low_cpu_mem_usage": False}
    net, report = DiTTransformer2DModel.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(report.values())
    assert not [record for record in caplog.records if record.name.startswith("diffusers")]
    assert [path.name for path in outputs.files_of(folder)] == ["config.json", "diffusion_pytorch_model.safetensors"]
    for block in net.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    model = model_of(base)
    x, t, y = torch.randn(3, 4, 8, 8), torch.tensor([0, 500, 999]), torch.tensor([0, 2, 3])
    with torch.no_grad():
        expected = model(x, t, y)
        got = net(x, timestep=t, class_labels=y, return_dict=False)[0]
    assert float((got - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("place", [".", "diffusion_pytorch_model.safetensors"])
def test_initialization_from_an_exported_folder_or_file_is_bit_exact(job, base, folder, place, caplog):
    caplog.set_level(logging.INFO)
    assert same(started_from(job, folder / place), weights_of(base))
    assert "loaded without changes" in caplog.text


def test_folder_saved_by_diffusers_initializes_a_run(job, folder, tmp_path, caplog):
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    caplog.set_level(logging.INFO)
    net = DiTTransformer2DModel.from_config(json.loads((folder / "config.json").read_text()) | {"norm_eps": 1e-5})
    for block in net.transformer_blocks:
        block.norm1.emb.load_state_dict(net.transformer_blocks[0].norm1.emb.state_dict())
    net.save_pretrained(tmp_path / "saved")
    start = started_from(job, tmp_path / "saved")
    assert torch.equal(start["blocks.1.mlp.fc2.weight"], net.transformer_blocks[1].ff.net[2].weight)
    attention = net.transformer_blocks[1].attn1
    assert torch.equal(start["blocks.1.attn.qkv.weight"].chunk(3)[1], attention.to_k.weight)
    assert "norm_eps is 1e-05; dithc, like the official DiT, uses 1e-06" in caplog.text


def test_mismatched_head_count_in_the_settings_is_rejected(job, folder):
    content = json.loads((folder / "config.json").read_text())
    content |= {"num_attention_heads": 4, "attention_head_dim": 8}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"num_heads[\s\S]*got: +4[\s\S]*expected: +2"):
        started_from(job, folder)


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"_class_name": "UNet2DModel"}'])
def test_invalid_config_json_is_rejected(job, folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        started_from(job, folder)


def test_export_logs_the_prediction_type_and_sampling_hint(job, tmp_path, caplog):
    one = job("other", until=1, model=SMALL | {"learn_sigma": False}, objective={"prediction_type": "flow"})
    train(one, Group())
    for layout in ("official", "diffusers"):
        caplog.clear()
        exported = export(one.paths.out, weights="ema", layout=layout, out=tmp_path / layout)
        assert exported["predicts"] == "flow"
        assert "predicts flow" in caplog.text
        assert "flow_prediction, use_flow_sigmas" in caplog.text


def test_export_unsupported_by_diffusers_is_rejected_without_output(job, tmp_path):
    without = job("without", until=1, label_dropout=0.0)
    train(without, Group())
    with pytest.raises(UserError, match="null label"):
        export(without.paths.out, weights="ema", layout="diffusers", out=tmp_path / "new" / "transformer")
    assert not (tmp_path / "new").exists()


def test_nonstandard_blocks_are_exported_only_as_safetensors(job, tmp_path, caplog):
    model = {"preset": "DiT-S/2", "hidden_size": 32, "depth": 2, "num_heads": 2, "position_embedding": "rope"}
    one = job("rotated", until=1, model=model)
    train(one, Group())
    for layout in ("official", "diffusers"):
        with pytest.raises(UserError, match=r"(does not support these blocks|cannot hold .*)\n.*rope"):
            export(one.paths.out, weights="ema", layout=layout, out=tmp_path / "new" / "weights")
    assert not (tmp_path / "new").exists()
    export(one.paths.out, weights="ema", layout="safetensors", out=tmp_path / "weights.safetensors")
    assert "position_embedding rope, qk_norm false, which other programs do not read" in caplog.text


@pytest.mark.parametrize("layout", ["safetensors", "official", "diffusers"])
def test_export_rejects_folders_not_written_by_dithc(base, tmp_path, layout):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "precious").write_text("years of work")
    with pytest.raises(UserError, match="dithc did not write"):
        export(base.paths.out, weights="ema", layout=layout, out=tmp_path / "results")
    assert (tmp_path / "results" / "precious").read_text() == "years of work"


def test_export_replaces_an_earlier_export(base, folder):
    export(base.paths.out, weights="raw", layout="diffusers", out=folder)
    read, source = read_weights(folder, model_of(base).config, weights="ema")
    assert same(read, weights_of(base, "raw"))
    assert source is not None


@pytest.fixture
def official(base, tmp_path):
    """Write a file of the original training code: weights of DistributedDataParallel, average, optimizer, arguments."""
    raw, ema = weights_of(base, "raw"), weights_of(base, "ema")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(value) for value in raw.values()])
    path = tmp_path / "0400000.pt"
    content = {
        "model": raw,
        "ema": ema,
        "opt": optimizer.state_dict(),
        "args": Namespace(model="DiT-S/2", data_path="/data", global_seed=0, lr=1e-4, vae="ema"),
    }
    torch.save(content, path)
    return path


@pytest.mark.parametrize("kind", ["ema", "raw"])
def test_official_training_checkpoint_initializes_a_run(job, base, official, kind):
    assert same(started_from(job, official, init_weights=kind), weights_of(base, kind))


@pytest.mark.parametrize("kind", ["ema", "raw"])
@pytest.mark.parametrize("layout", ["safetensors", "official"])
def test_exported_weights_initialize_a_run(job, base, tmp_path, kind, layout):
    out = tmp_path / ("weights.safetensors" if layout == "safetensors" else "weights.pt")
    export(base.paths.out, weights=kind, layout=layout, out=out)
    assert same(started_from(job, out, init_weights=kind), weights_of(base, kind))
    if layout == "safetensors":  # the original network needs no description
        assert read_external(out)[1] == read_external(checkpoint(base).weights("ema"))[1] == {"format": "pt"}
    elif kind == "ema":
        assert set(torch.load(out, weights_only=True)) == {"model", "ema"}


@pytest.mark.parametrize("layout", ["safetensors", "official", "raw official", "diffusers", "checkpoint"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": {"prediction_type": "flow"}}, "prediction_type flow\n"),
        (
            {"model": SMALL | {"learn_sigma": False, "position_embedding": "rope", "norm": "rms"}},
            "norm rms, position_embedding rope\n",
        ),
    ],
)
def test_weights_of_a_different_network_with_equal_shapes_are_rejected(job, tmp_path, layout, changes, message):
    one = job("other", until=1, **{"model": SMALL | {"learn_sigma": False}} | changes)
    train(one, Group())
    if layout == "checkpoint":
        path = checkpoint(one).weights("raw")
    elif layout != "safetensors" and "objective" not in changes:
        return  # these blocks are not exported to other programs
    else:
        weights, layout = ("raw", "official") if layout == "raw official" else ("ema", layout)
        path = tmp_path / {"safetensors": "w.safetensors", "official": "w.pt", "diffusers": "transformer"}[layout]
        export(one.paths.out, weights=weights, layout=layout, out=path)
    with pytest.raises(UserError, match=rf"another type of network\n.*got: +{message}"):
        started_from(job, path, model=SMALL | {"learn_sigma": False})


def test_export_to_an_unwritable_path_raises_user_error(base, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="could not be written"):
        export(base.paths.out, weights="ema", layout="safetensors", out=tmp_path / "file" / "weights.safetensors")


def test_missing_weights_file_is_rejected(job, tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        started_from(job, tmp_path / "missing.pt")


def test_weights_file_is_memory_mapped(base, official):
    found, _ = read_weights(official, model_of(base).config, weights="ema")
    address = found["blocks.0.attn.qkv.weight"].data_ptr()
    mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(official) in line]
    ranges = [[int(end, 16) for end in fields[0].split("-")] for fields in mapped]
    assert any(first <= address < last for first, last in ranges)


class Harmful:
    """Object that runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("hidden", [False, True])
def test_code_in_a_weights_file_is_rejected_without_execution(job, base, tmp_path, hidden):
    harmful = Harmful(f"touch {tmp_path / 'done'}")
    torch.save({"ema": weights_of(base), "args": Namespace(a=harmful) if hidden else harmful}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=r"cannot be read[\s\S]*an object of posix.system"):
        started_from(job, tmp_path / "bad.pt")
    assert not (tmp_path / "done").exists()
