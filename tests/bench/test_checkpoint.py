"""The cost of a checkpoint is measured in turns with as many steps without; no time is judged."""

import json

import pytest

from dithc.bench import table
from dithc.cli import main


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    words = ["bench", "checkpoint", "--model", "DiT-S/2", "--override", "hidden_size=32", "--override", "depth=1"]
    words += ["--override", "num_heads=2", "--batch", "2", "--rounds", "2", "--folder", str(folder)]
    assert main([*words, "--json", str(folder / "result.json")]) == 0
    assert [path.name for path in folder.iterdir()] == ["result.json"], "the checkpoints are removed"
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
def test_each_save_has_as_many_steps_without(result):
    assert len(result["saves"]) == 2
    for row in result["saves"]:
        assert len(row["without"]) == max(1, len(row["during"]))
        assert 0 < row["stalled"] <= row["save"]
        assert row["ratio"] > 0
    assert result["settings"]["model"]["preset"] == "DiT-S/2"
    assert result["machine"]["cores"]


def test_table_names_ratios(result):
    said = table(result)
    assert "a step during a save over one without: median" in said
    assert len(said.splitlines()) == 6
