"""Table 1: scores of runs, a column per training setting, the median over seeds."""

from pathlib import Path
from typing import Any

import pytest

from dithc.config import ExperimentConfig
from dithc.core.artifacts import Manifest
from dithc.core.reproduction import ResultCell
from dithc.workflow.reproduction.training_results import labels, read_scores

ROOT = Path(__file__).parents[3]
DATASET = {
    "title": "Gaofen-2",
    "source": {"kind": "gaofen2", "synthetic": {"scenes": 1, "size": 256}},
    "tiles": {"size": 64},
    "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 700},
    "codec": "vae",
}
CODEC = {"kind": "kl-vae", "train_dataset": "gf2", "latent_channels": 4}
EXTRACTOR = {"kind": "inception", "path": "weights.pth"}
PAPER = {"comparable_to_published": True, "n_real": 10_000, "n_generated": 10_000}


def score_cells(folder: Path, runs: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> list[ResultCell]:
    experiment = ExperimentConfig.model_validate(
        {
            "datasets": {"gf2": DATASET},
            "codecs": {"vae": CODEC},
            "extractors": {"own": EXTRACTOR},
            "runs": {"start": {"dataset": "gf2", "global_batch_size": 4}}
            | {name: {"dataset": "gf2", "init_from_run": "start"} | settings for name, (settings, _) in runs.items()},
            "evaluations": {name: {"run": name, "extractor": "own"} for name in runs},
        }
    )
    paths = []
    for name, (_, numbers) in runs.items():
        content = {"n_real": 96, "n_generated": 64, "num_features": 8, "extractor": "own", "sha256": "ab" * 32}
        content |= {"kind": "classifier", "resize": "none", "comparable_to_published": False, "floor": 0.5} | numbers
        path = folder / "fid" / name / "manifest.json"
        path.parent.mkdir(parents=True)
        Manifest(stage="fid", name=name, spec={"name": name}, summary=content).write(path)
        paths.append(path)
    return read_scores(experiment, paths, page=folder / "paper")


def test_cell_of_several_seeds_reports_the_median_and_links_the_run(tmp_path: Path) -> None:
    runs = {
        f"s{seed}": ({"global_batch_size": 8, "seed": seed}, {"fid": fid}) for seed, fid in enumerate((3.0, 1.0, 2.0))
    }
    (cell,) = score_cells(tmp_path, runs)
    assert (cell.value, cell.low, cell.high, cell.column) == (2.0, 1.0, 3.0, "batch 8")
    assert (tmp_path / "paper" / cell.file).resolve() == tmp_path / "fid/s2/manifest.json"
    assert cell.command.endswith("--evaluation s2")
    assert labels([cell, cell]) == [f"Gaofen-2: n 64 against 96, extractor own sha256 {'ab' * 6}, floor 0.5."]
    for part in ("median of 3 seeds", "n 64 against 96", "abababababab", "floor 0.5"):
        assert part in cell.quantity


def test_each_training_setting_has_a_unique_column(tmp_path: Path) -> None:
    runs = {
        "small": ({"global_batch_size": 8}, {"fid": 1.0}),
        "large": ({"global_batch_size": 28672}, {"fid": 2.0}),
        "torch": ({"global_batch_size": 8, "backend": "reference"}, {"fid": 3.0}),
        "longer": ({"global_batch_size": 28672, "steps": 7}, {"fid": 4.0}),
    }
    cells = score_cells(tmp_path, runs)
    assert [cell.column for cell in cells] == [
        *("batch 8", "batch 28672, large", "batch 8, backend reference", "batch 28672, longer"),
    ]
    assert (cells[0].low, cells[0].high) == (None, None)
    assert {cell.published for cell in cells} == {None}


@pytest.mark.parametrize(
    ("settings", "numbers", "printed"),
    [
        ({"global_batch_size": 112}, PAPER, 28.51),
        ({"global_batch_size": 28672}, PAPER, 24.70),
        ({"global_batch_size": 112, "backend": "reference"}, PAPER, 30.44),
        ({"global_batch_size": 16}, PAPER, None),
        ({"global_batch_size": 112}, PAPER | {"n_generated": 5000}, None),
        ({"global_batch_size": 112}, PAPER | {"comparable_to_published": False}, None),
    ],
)
def test_published_score_is_listed_only_for_the_published_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], numbers: dict[str, Any],
    printed: float | None,
) -> None:  # fmt: skip
    monkeypatch.chdir(ROOT)
    (cell,) = score_cells(tmp_path, {"one": (settings, numbers | {"fid": 30.0})})
    assert cell.published == printed


def test_rows_without_evaluations_are_skipped_with_a_reason(tmp_path: Path) -> None:
    cells = score_cells(tmp_path, {})
    assert [(cell.row, cell.status) for cell in cells] == [("Gaofen-2", "skipped"), ("Sentinel-2", "skipped")]
    assert all("evaluations" in cell.reason for cell in cells)
