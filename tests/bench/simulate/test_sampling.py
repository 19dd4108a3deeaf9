"""Tests of `dithc simulate --sampling`: predicted sampling time on a described machine, and the best partition."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.cli import main

LX2 = Path(__file__).parents[3] / "profiles/machines/lx2.yaml"
LARGE = ["--size", "4096", "--nodes", "64"]


def simulate(*arguments: str, machine: Path = LX2) -> int:
    return main(["simulate", "--sampling", "--machine", str(machine), *arguments])


def point(tmp_path: Path, *arguments: str) -> dict:
    file = tmp_path / "sampling.json"
    assert simulate(*arguments, "--json", str(file)) == 0
    (found,) = json.loads(file.read_text())["curves"][0]["points"]
    return found


@pytest.mark.parametrize("size", ["512", "1024"])
def test_guided_image_on_four_dies_uses_cfg_2_and_shared_2(tmp_path, capsys, size) -> None:
    found = point(tmp_path, "--nodes", "1", "--size", size)
    assert found["speedup"] >= 3.8
    assert (found["degrees"]["cfg"], found["degrees"]["shared"]) == (2, 2)
    out = capsys.readouterr().out
    assert "cfg 2 x shared 2  <- chosen" in out
    assert "16 heads are not a multiple of 3" in out


@pytest.mark.parametrize(("bandwidth", "least"), [("24e9", 0.95), ("0.5e9", 0.80)])
def test_large_image_on_256_ranks_reaches_the_required_share_of_ideal(tmp_path, bandwidth, least) -> None:
    found = point(tmp_path, *LARGE, "--bandwidth", bandwidth)
    assert found["share_of_ideal"] >= least
    assert found["ranks"] == 256


def test_many_images_on_1024_ranks_use_no_sequence_parallelism(tmp_path) -> None:
    found = point(tmp_path, "--num-images", "10000", "--nodes", "256")
    assert found["share_of_ideal"] >= 0.95
    assert found["degrees"]["ulysses"] == found["degrees"]["ring"] == found["degrees"]["shared"] == 1
    assert found["legal"] > len(found["choices"]) == 8


def test_free_decoder_and_unguided_sampling_reduce_the_time(tmp_path) -> None:
    whole = point(tmp_path, "--nodes", "1", "--model", "DiT-S/2")
    without = point(tmp_path, "--nodes", "1", "--model", "DiT-S/2", "--decode-tflop", "0")
    one = point(tmp_path, "--nodes", "1", "--model", "DiT-S/2", "--no-guidance")
    assert without["seconds"] < whole["seconds"]
    assert one["seconds"] < whole["seconds"]
    assert one["degrees"]["cfg"] == 1


def test_invalid_numbers_are_rejected_before_torch_is_imported() -> None:
    program = (
        "import sys\nfrom dithc.cli import main\nassert main(sys.argv[1:]) == 2\nassert 'torch' not in sys.modules\n"
    )
    arguments = ["simulate", "--sampling", "--machine", str(LX2), "--num-images", "-1"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "simulate --num-images" in done.stderr


def test_table_omits_node_counts_without_speedup(tmp_path, capsys) -> None:
    file = tmp_path / "sampling.json"
    assert simulate("--model", "DiT-S/2", "--nodes", "1,2,256,512", "--json", str(file)) == 0
    points = json.loads(file.read_text())["curves"][0]["points"]
    assert [point["nodes"] for point in points] == [1, 2, 256, 512], "the file has all"
    out = capsys.readouterr().out
    assert points[2]["degrees"] == points[3]["degrees"]
    assert " 512 nodes take the same" in out
    enough = next(point for point in points if point["seconds"] == points[-1]["seconds"])
    assert f"of {enough['ranks']} ranks" in out
    assert enough["ranks"] < 1024
    assert "of 2048 ranks" not in out
    assert simulate("--model", "DiT-S/2", "--nodes", "1,2", "--num-images", "1000") == 0  # control
    assert "take the same" not in capsys.readouterr().out
