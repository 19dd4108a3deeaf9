"""`dithc simulate --sample`: what a sampling takes on a described machine, and how it is best cut there."""

import json
from pathlib import Path

import pytest

from dithc.cli import main

LX2 = Path(__file__).parents[2] / "profiles/machines/lx2.yaml"
LARGE = ["--size", "4096", "--nodes", "64"]


def simulate(*words: str, machine: Path = LX2) -> int:
    return main(["simulate", "--sample", "--machine", str(machine), *words])


def point(tmp_path: Path, *words: str) -> dict:
    file = tmp_path / "sampling.json"
    assert simulate(*words, "--json", str(file)) == 0
    (found,) = json.loads(file.read_text())["curves"][0]["points"]
    return found


@pytest.mark.parametrize("size", ["512", "1024"])
def test_a_guided_image_on_the_four_dies_of_a_node(tmp_path, capsys, size) -> None:
    found = point(tmp_path, "--nodes", "1", "--size", size)
    assert found["speedup"] >= 3.8
    assert (found["degrees"]["cfg"], found["degrees"]["shared"]) == (2, 2)
    out = capsys.readouterr().out
    assert "cfg 2 x shared 2  <- chosen" in out
    assert "16 heads are no multiple of 3" in out


@pytest.mark.parametrize(("bandwidth", "least"), [("24e9", 0.95), ("0.5e9", 0.80)])
def test_an_image_of_many_tokens_on_256_ranks(tmp_path, bandwidth, least) -> None:
    found = point(tmp_path, *LARGE, "--bandwidth", bandwidth)
    assert found["share_of_ideal"] >= least
    assert found["ranks"] == 256


def test_many_images_on_1024_ranks(tmp_path) -> None:
    found = point(tmp_path, "--images", "10000", "--nodes", "256")
    assert found["share_of_ideal"] >= 0.95
    assert found["degrees"]["ulysses"] == found["degrees"]["ring"] == found["degrees"]["shared"] == 1
    assert found["legal"] > len(found["choices"]) == 8


def test_a_decoder_of_nothing_and_one_branch_take_less(tmp_path) -> None:
    whole = point(tmp_path, "--nodes", "1", "--model", "DiT-S/2")
    without = point(tmp_path, "--nodes", "1", "--model", "DiT-S/2", "--decode-tflop", "0")
    one = point(tmp_path, "--nodes", "1", "--model", "DiT-S/2", "--unguided")
    assert without["seconds"] < whole["seconds"]
    assert one["seconds"] < whole["seconds"]
    assert one["degrees"]["cfg"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--images", "0"], "--images"),
        (["--size", "100"], "--size"),
        (["--sampling-steps", "0"], "--sampling-steps"),
        (["--bandwidth", "0"], "--bandwidth"),
        (["--half-tokens", "-1"], "--half-tokens"),
        (["--flops", "nan"], "--flops"),
        (["--nodes", "0"], "--nodes"),
        (["--model", "DiT-M/2"], "DiT-M/2"),
    ],
)
def test_nonsense_is_refused_with_its_name(words, said, capsys) -> None:
    assert simulate(*words) == 2
    assert said in capsys.readouterr().err


def test_a_machine_without_network_is_refused(tmp_path, capsys) -> None:
    path = tmp_path / "lonely.yaml"
    path.write_text("clusters: [{cores: 0-3}]\n")
    assert simulate("--flops", "1e12", machine=path) == 2
    assert "section `network`" in capsys.readouterr().err
