"""Tests of crafted weights, manifests and checkpoints: errors in four lines, no traceback, no blocking on pipes."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dithc.core.artifacts import Manifest, sha256_file
from dithc.core.logging import UserError
from dithc.core.tensor_files import read_tensors
from dithc.model import diffusers_keys

SECONDS = 30
VALID = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F32", "shape": [4], "data_offsets": [24, 40]},
}


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def file_of(header: Any, *, length: int | None = None, data: bytes = b"\0" * 40) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def crafted_file(draws: random.Random) -> tuple[str, bytes]:
    huge = draws.choice([10**18, 2**63, 2**64 - 1, 10**9, 41])
    cut = {"name": "a", "shape": [4, 3], "dim": 0, "start": 0}
    odd = draws.choice(["x", None, -1, 1.5, 2**70, [huge], [-1], {}, [[2]], ["a"]])
    pieces: Any = draws.choice([{"a": {**cut, draws.choice(list(cut)): odd}}, {"a": cut}, {"a": []}, [1], 1, "x"])

    def entry(**changes: Any) -> dict[str, Any]:
        return {**VALID, "a": {**VALID["a"], **changes}}

    deep = draws.randrange(2000, 200_000)
    made: dict[str, bytes] = {
        "header length": file_of(VALID, length=huge),
        "offsets that overlap": file_of(entry(data_offsets=[8, 32])),
        "offsets past the end": file_of(entry(data_offsets=[0, huge])),
        "offsets turned round": file_of(entry(data_offsets=[24, 0])),
        "negative offsets": file_of(entry(data_offsets=[-24, 0])),
        "shape": file_of(entry(shape=[huge, huge])),
        "negative shape": file_of(entry(shape=[-2, -3])),
        "dtype": file_of(entry(dtype=draws.choice(["F64", "I8", "BOOL", "F17", "", 3, None]))),
        "pieces": file_of(
            {**VALID, "__metadata__": {"dithc.pieces": json.dumps(pieces), "pieces": json.dumps(pieces)}}
        ),
        "metadata": file_of({**VALID, "__metadata__": draws.choice([1, [1], {"a": 1}, {"a": {"b": 1}}])}),
        "no JSON": file_of(b"{" * draws.randrange(1, 99)),
        "deep JSON": file_of(b'{"a":' * deep),
        "no UTF-8": file_of(b'{"\xff": 1}'),
        "cut short": file_of(VALID)[: draws.randrange(0, 160)],
        "noise": bytes(draws.randrange(256) for _ in range(draws.randrange(200))),
    }
    damage = draws.choice(sorted(made))
    return damage, made[damage]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 110))])
def test_crafted_tensor_files_are_rejected_or_read_within_bounds(tmp_path: Path, seed: int) -> None:
    draws = random.Random(seed)
    for number in range(200):
        damage, content = crafted_file(draws)
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(content)
        signal.alarm(SECONDS)
        message = "fix: none is needed"
        try:
            for name, value in read_tensors(path).items():  # a crafted file may be valid
                assert value.numel() * value.element_size() <= len(content), (damage, name)
        except UserError as error:
            message = str(error)
        assert "fix:" in message, damage
        assert len(message) < 2000, damage


@pytest.mark.parametrize(
    "key", ["sample_size", "num_layers", "attention_head_dim", "num_embeds_ada_norm", "patch_size"]
)
@pytest.mark.parametrize("value", [10**9, 0, -1, True, 2.0, "8", None])
def test_invalid_model_settings_are_rejected_before_construction(key: str, value: object) -> None:
    with pytest.raises(UserError, match=key):
        diffusers_keys.source_of({key: value})


@pytest.mark.parametrize("read", [Manifest.read, read_tensors, sha256_file])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_special_files_are_rejected_without_blocking(
    tmp_path: Path, read: Callable[[Path], object], make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd")
    with pytest.raises((UserError, OSError), match="odd"):
        read(tmp_path / "odd")


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["--config", "--scenes"])
def test_pipe_as_input_file_ends_the_command_with_an_error(tmp_path: Path, odd: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    options = {
        "--config": Path("config/experiments/demo.yaml").resolve(),
        "--scenes": tmp_path / "none",
        odd: tmp_path / "pipe",
    }
    arguments = [part for option, path in options.items() for part in (option, path)]
    program = [
        Path(sys.executable).parent / "dithc",
        "tiles",
        "--dataset",
        "sentinel2",
        "--out",
        tmp_path / "out/manifest.json",
    ]
    signal.alarm(300)
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "pipe" in done.stderr
    assert "fix:" in done.stderr


@pytest.mark.parametrize("text", ["0", "-1", "two", "9" * 30, "²", "1e3", " 2"])
def test_invalid_thread_counts_are_rejected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dithc.engine.comm import session

    monkeypatch.setenv("OMP_NUM_THREADS", text)
    with pytest.raises(UserError, match="OMP_NUM_THREADS"):
        session._requested_threads()
    for setting, expected in {"2": 2, "": None, "4,2": None}.items():
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
        assert session._requested_threads() == expected
    assert torch.get_num_threads() >= 1
