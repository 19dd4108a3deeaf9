"""Table 1 of what trainings left: a column for each batch and back end, the mean and range of its seeds, and the paper's."""

from pathlib import Path
from typing import Any

import pytest

from dithc.config import Experiment
from dithc.runs import Manifest
from dithc.workflow.paper.trained import read_scores

RUN = {"dataset": "s2", "init_file": "weights.pt", "steps": 40, "global_batch": 112}
SETTINGS = {
    "datasets": {"s2": {"title": "Scenes", "source": {"kind": "sentinel2", "path": "scenes"}, "tiles": {"size": 64},
                        "codec": "vae", "rendering": {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3}}},
    "codecs": {"vae": {"kind": "pixel"}},
    "runs": {"a": RUN, "b": RUN | {"seed": 1}, "large": RUN | {"global_batch": 28672}, "torch": RUN | {"backend": "reference"}},
    "extractors": {"e": {"kind": "inception", "path": "inception.pth"}},
    "evaluations": {name: {"run": name, "images": 64, "extractor": "e"} for name in ("a", "b", "large", "torch")},
}  # fmt: skip


def manifests(folder: Path, *, comparable: bool, **scores: float) -> list[Path]:
    paths = []
    for name, score in scores.items():
        numbers: dict[str, Any] = {"fid": score, "n_generated": 64, "n_real": 90, "extractor": "inception", "sha256": "ab" * 32,
                                   "floor": 0.5, "comparable": comparable, "resize": "clean"}  # fmt: skip
        paths.append(folder / name / "manifest.json")
        paths[-1].parent.mkdir(parents=True)
        Manifest(stage="fid", name=name, spec={"score": score}, numbers=numbers, files=[]).write(paths[-1])
    return paths


@pytest.mark.parametrize("comparable", [True, False])
def test_columns_have_the_mean_and_range_of_their_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comparable: bool
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    paths = manifests(tmp_path / "fid", comparable=comparable, a=30.0, b=26.0, large=24.0, torch=25.0)
    cells = {
        cell.column: cell for cell in read_scores(Experiment.model_validate(SETTINGS), paths, page=tmp_path / "paper")
    }
    assert list(cells) == ["batch 112", "batch 28672", "batch 112, back end reference"]
    small = cells["batch 112"]
    assert (small.value, small.low, small.high) == (28.0, 26.0, 30.0)
    assert "n 64 against 90" in small.quantity
    assert "mean and range of 2 seeds" in small.quantity
    assert (cells["batch 28672"].low, cells["batch 28672"].high) == (None, None)
    printed = [cell.published for cell in cells.values()]
    assert printed == ([29.03, 22.61, 24.97] if comparable else [None, None, None])
    assert small.file == "../fid/a/manifest.json"


def test_an_experiment_without_scores_says_so() -> None:
    cells = read_scores(Experiment(), [], page=Path("paper"))
    assert {cell.status for cell in cells} == {"skipped"}
