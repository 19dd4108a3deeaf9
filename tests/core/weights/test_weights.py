"""Weights of other programs: shards, wrapper prefixes, and files with other content, in the plan and in every reader."""

import gzip
import io
import json
import logging
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from datetime import date
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from dithc.config import codecs
from dithc.core.logging import UserError
from dithc.core.tensor_files import read_external
from dithc.core.weights import WRAPPERS, content_of, files_of, unwrapped
from dithc.evaluate import load_extractor
from dithc.latents.codecs.torchscript import TorchScriptAutoencoder
from dithc.model import DiT, DiTConfig, diffusers_keys, official_state_dict
from dithc.train.checkpoints import read_weights

CONFIG = DiTConfig(
    hidden_size=32, depth=2, num_heads=2, patch_size=2, input_size=8, in_channels=4, num_classes=3, learn_sigma=True
)
NAMES = ["blocks.0.attn.qkv.weight", "x_embedder.proj.bias", "pos_embed"]
ADVICE = ("weights_only", "weights only", "pickle", "trust")
wrappers = st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=3)


def archive_of(make):
    buffer = io.BytesIO()
    make(buffer)
    return buffer.getvalue()


def write_zip(buffer):
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("weights/readme.txt", "text")


def write_tar(buffer):
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("weights.safetensors"))


TENSORS = {"a": torch.arange(600.0), "b": torch.ones(3)}
SAVED = archive_of(lambda buffer: torch.save(TENSORS, buffer))
NOT_WEIGHTS = {
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 92\n",
    "HTML": b"\n<!DOCTYPE html><html><body>404: weights_only not found</body></html>",
    "XML": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
    "zip": archive_of(write_zip),
    "tar": archive_of(write_tar),
    "gzip": gzip.compress(SAVED),
    "empty": b"",
    "zeros": bytes(5000),
    "JSON": json.dumps({"error": "Repository not found"}).encode(),
    "text": "déjà vu ".encode() * 900,
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "cut short": save(TENSORS)[:-9],
    "of 9 bytes": save(TENSORS)[:9],
    "zip archive (also": SAVED[:-300],
    "damaged header": (20).to_bytes(8, "little") + b"{no header at all!!!" + bytes(9),
    "datetime.date": archive_of(lambda buffer: torch.save({"day": date(2024, 1, 2)}, buffer)),
    "pickle": pickle.dumps(date(2024, 1, 2)),
    "binary": bytes(range(128, 256)) * 9,
}


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt2"])
@pytest.mark.parametrize("kind", NOT_WEIGHTS)
def test_every_reader_reports_the_type_of_a_file_without_weights(kind, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(NOT_WEIGHTS[kind])
    program = codecs.TorchScriptCodecConfig(
        kind="torchscript",
        path=str(path),
        trust_code=True,
        latent_channels=4,
        downsampling_factor=8,
        scaling_factor=1.0,
    )
    readers = {
        "weights": lambda: read_weights(path, CONFIG, weights="ema"),
        "inception": lambda: load_extractor("inception", path),
        "squeezenet": lambda: load_extractor("squeezenet", path),
        "classifier": lambda: load_extractor("classifier", path),
        "torchscript": lambda: load_extractor("torchscript", path, trust=True),
        "program": lambda: TorchScriptAutoencoder(program),
    }
    for reader, read in readers.items():
        with pytest.raises(UserError) as caught:
            read()
        got = str(caught.value).split("got:")[1]
        assert reader in ("torchscript", "program") or kind.lower() in got.lower() or content_of(path).words in got
        text = got.replace("a pickle", "")
        assert not any(advice in text.lower() for advice in ADVICE)
        assert caught.value.__cause__ is None, "a traceback must not contain torch's advice"


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 40, 200, 1000])
def test_truncated_weights_file_raises_a_user_error(size, tmp_path):
    for number, content in enumerate(
        (
            save(TENSORS),
            SAVED,
            archive_of(lambda buffer: torch.save(TENSORS, buffer, _use_new_zipfile_serialization=False)),
        )
    ):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(content)
        assert set(read_external(path)[0]) == set(TENSORS)
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match="cannot be read"):
            read_external(path)


@given(at=st.lists(wrappers, min_size=4, max_size=4), data=st.data())
@settings(max_examples=40, deadline=None)
def test_wrappers_anywhere_in_names_are_removed(at, data):
    def wrapped(name):
        parts = name.split(".")
        inside = [part for index, one in enumerate(parts[:-1]) for part in (*at[index], one)]
        return ".".join([*inside, *at[3], parts[-1]])

    state = {wrapped(name): number for number, name in enumerate(NAMES)}
    assert unwrapped(state, source="x") == {name: number for number, name in enumerate(NAMES)}


def test_ambiguous_wrapped_names_are_rejected_and_bare_wrappers_are_kept():
    with pytest.raises(UserError, match=r"a\.b twice"):
        unwrapped({"a.b": 1, "a.module.b": 2}, source="x")
    assert unwrapped({"module": 1, "model": 2}, source="x") == {"module": 1, "model": 2}


@pytest.mark.parametrize("file", ["w.pt", "w.safetensors"])
def test_weights_of_wrapped_modules_are_read_with_one_log_line(file, tmp_path, caplog):
    model = DiT(CONFIG)
    inner = "_orig_mod._fsdp_wrapped_module."
    state = {
        f"module.{name.replace('blocks.1.', f'blocks.1.{inner}')}": t.contiguous()
        for name, t in model.state_dict().items()
    }
    if file == "w.pt":
        averaged = {**state, "n_averaged": torch.tensor(3)}
        torch.save({"ema": OrderedDict(averaged), "model": state, "opt": {"state": {0: 1}}}, tmp_path / file)
    else:
        save_file(state, tmp_path / file)
    with caplog.at_level(logging.INFO):
        found, _ = read_weights(tmp_path / file, CONFIG, weights="ema")
    assert set(found) == set(model.state_dict())
    lines = [record.message for record in caplog.records if "wrapper" in record.message]
    assert len(lines) == (2 if file == "w.pt" else 1)  # one per set of weights
    assert all(one in lines[0] for one in ("module.", "_orig_mod.", "_fsdp_wrapped_module."))
    assert set(official_state_dict(state)) == set(found)


def shards(folder: Path, state, *, stem="diffusion_pytorch_model", index=True, count=3):
    names, weight_map = sorted(state), {}
    for number in range(count):
        file = f"{stem}-{number + 1:05d}-of-{count:05d}.safetensors"
        save_file({name: state[name].contiguous() for name in names[number::count]}, folder / file)
        weight_map |= dict.fromkeys(names[number::count], file)
    if index:
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("stem", ["diffusion_pytorch_model", "model"])
@pytest.mark.parametrize("given", ["", "{}.safetensors.index.json", "{}.safetensors", "{}-00002-of-00003.safetensors"])
def test_shards_are_found_by_folder_index_file_name_or_one_shard(stem, given, tmp_path):
    state = diffusers_keys.to_diffusers(DiT(CONFIG).state_dict(), CONFIG)
    (tmp_path / "config.json").write_text(json.dumps(diffusers_keys.settings(CONFIG)))
    shards(tmp_path, {f"module.{name}": value for name, value in state.items()}, stem=stem)
    found, source = read_weights(tmp_path / given.format(stem), CONFIG, weights="ema")
    assert set(found) == set(DiT(CONFIG).state_dict())
    assert source == CONFIG
    assert len(files_of(tmp_path / given.format(stem))) == 3


def test_missing_shard_and_invalid_index_are_rejected(tmp_path):
    shards(tmp_path, TENSORS, count=2)
    (tmp_path / "diffusion_pytorch_model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"00002-of-00002\.safetensors missing"):
        read_external(tmp_path)
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    for content in ({"weight_map": {"a": "../a.safetensors"}}, {"weight_map": {}}, [1]):
        index.write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"not a file name|no `weight_map`"):
            read_external(tmp_path)
