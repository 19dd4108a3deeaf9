"""Tensor files: any reader accepts complete tensors, pieces are assembled, and missing parts are errors."""

import hashlib
import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dithc.core.logging import UserError
from dithc.core.tensor_files import (
    TensorFile,
    TensorPiece,
    assemble,
    read_tensors,
    shard_name,
    write_file,
    write_tensors,
)

MIXED = {
    "weight": torch.randn(7, 5),
    "half": torch.randn(3).to(torch.bfloat16),
    "step": torch.tensor(4.0),
    "count": torch.arange(6),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.empty(0, 3),
    "across": torch.randn(4, 6).t(),
}


def test_files_are_compatible_with_the_safetensors_library(tmp_path):
    write_tensors(tmp_path / "a.safetensors", MIXED)
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == MIXED.keys()
    for name, value in MIXED.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    save_file({name: value.contiguous() for name, value in MIXED.items()}, tmp_path / "a.safetensors")
    found = read_tensors(tmp_path / "a.safetensors")
    assert set(found) == set(MIXED)
    assert all(torch.equal(found[name], value) for name, value in MIXED.items())


def test_file_entry_and_bytes_are_independent_of_tensor_order(tmp_path):
    pieces, path = [TensorPiece.whole(name, value) for name, value in MIXED.items()], tmp_path / "a.safetensors"
    entries = [write_file(path, TensorFile.of(order)) for order in (pieces, pieces[::-1])]
    content = path.read_bytes()
    entry = {"path": path.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert entries == [entry, entry]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pieces_in_any_number_of_files_are_assembled(tmp_path_factory, data):
    """Tensors are sliced along a dimension or as ranges of elements, at any positions, over any files."""
    folder = tmp_path_factory.mktemp("pieces")
    count, whole, parts = data.draw(st.integers(2, 4)), {}, [[] for _ in range(4)]
    for number in range(data.draw(st.integers(1, 4))):
        shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
        name, value = f"layer.{number}.weight", torch.randn(shape)
        dim = data.draw(st.sampled_from([None, *range(len(shape))]))
        length = value.numel() if dim is None else shape[dim]
        cuts = sorted(set(data.draw(st.lists(st.integers(0, length), max_size=4))) | {0, length})
        source = value.reshape(-1) if dim is None else value
        for start, stop in itertools.pairwise(cuts):
            values = source.narrow(dim or 0, start, stop - start)
            rank = data.draw(st.integers(0, count - 1))
            parts[rank].append(TensorPiece(name=name, values=values, shape=shape, dim=dim, start=start))
        whole[name] = value
    for rank in range(count):
        write_file(folder / shard_name("model.safetensors", rank, count), TensorFile.of(parts[rank]))
    found = read_tensors(folder / "model.safetensors")
    assert set(found) == set(whole)
    assert all(torch.equal(found[name], value) for name, value in whole.items())


def test_metadata_describe_pieces(tmp_path):
    whole = torch.randn(4, 6)
    path = tmp_path / "a.safetensors"
    write_file(path, TensorFile.of([TensorPiece(name="w", values=whole[:, 2:4], shape=(4, 6), dim=1, start=2)]))
    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == ["w@2"]
        assert json.loads(file.metadata()["pieces"]) == {"w@2": {"name": "w", "shape": [4, 6], "dim": 1, "start": 2}}
        assert torch.equal(file.get_tensor("w@2"), whole[:, 2:4])


@pytest.mark.parametrize("fault", ["gap", "overlap", "shape"])
def test_inconsistent_pieces_are_rejected(fault):
    values = torch.arange(6.0)
    start = {"gap": 4, "overlap": 2}.get(fault, 3)
    second = TensorPiece(
        name="w", values=values[start:], shape=(6,) if fault != "shape" else (2, 3), dim=None, start=start
    )
    with pytest.raises(UserError, match="tensor w cannot be assembled"):
        assemble([TensorPiece(name="w", values=values[:3], shape=(6,), dim=None), second])


def test_shards_of_equal_name_and_count_are_read_together(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(UserError, match="no such file"):
        read_tensors(path)
    one, two = (tmp_path / shard_name("model.safetensors", number, 2) for number in range(2))
    write_tensors(one, {"one": torch.zeros(3)})
    with pytest.raises(UserError, match=r"model-00002-of-00002.safetensors missing"):
        read_tensors(path)
    write_tensors(two, {"two": torch.zeros(3)})
    write_tensors(tmp_path / "model-extra-00001-of-00001.safetensors", {"other": torch.zeros(1)})
    assert set(read_tensors(path)) == {"one", "two"}
    write_tensors(tmp_path / shard_name("model.safetensors", 0, 3), {})
    with pytest.raises(UserError, match=r"shards of \[2, 3\] files"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 7, b"\xff" * 20, b"\x02" + bytes(7) + b"{}x"])
def test_file_of_invalid_format_is_rejected(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        read_tensors(tmp_path / "a.safetensors")
