"""Cells as files: reuse, resumption and damage; documents of cells; the rules of both."""

import json
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.cli.experiment import reproduce_cell
from dithc.core.artifacts import outputs
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.reproduction import TARGETS, TargetResult
from tests.workflow.conftest import snakemake

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config/experiments/paper-ci.yaml"
NODE = ("--cores", "2", "--memory-gib", "24")
CELLS = ("measured-xl-2", "simulated-paper", "simulated-strong", "simulated-zero1")


def paper(*arguments: object) -> int:
    return main(["reproduce", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _no_other_measures(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate lock, so that tests do not wait for measurements on this machine."""
    place = str(tmp_path_factory.mktemp("lock"))
    monkeypatch.setattr(reproduce_cell.tempfile, "gettempdir", lambda: place)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of minimal cells of figure 11, and the repository as working folder."""
    monkeypatch.chdir(ROOT)
    cells = tmp_path / "cells"
    cells.mkdir()
    for name in CELLS:
        content = {"target": "fig11", "cell": name, "status": 0, "reason": "", "result": {"curves": []}}
        (cells / f"{name}.json").write_text(dump_checksummed(content))
    return cells


def document(cells: Path) -> TargetResult:
    out = cells.parent / "fig11.json"
    assert paper("fig11", "--config", CONFIG, *NODE, "--cells", cells, "--out", out) == 0
    assert all(out.with_suffix(suffix).stat().st_size for suffix in (".csv", ".svg", ".png"))
    return TargetResult.read(out)


@pytest.mark.slow
def test_cell_is_computed_once_and_writes_only_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    out, arguments = tmp_path / "simulated-weak.json", ("fig10", "--config", CONFIG, *NODE, "--cell", "simulated-weak")
    assert paper(*arguments, "--out", out) == 0
    content = load_checksummed(out.read_text())
    assert content["result"]["curves"]
    assert content["predicted_seconds"] > 0
    assert outputs.files_of(tmp_path) == [out]
    capsys.readouterr()
    bytes_before = out.read_bytes()
    assert paper(*arguments, "--out", out) == 0
    assert out.read_bytes() == bytes_before or load_checksummed(out.read_text())["result"] == content["result"]


def test_stopped_cell_writes_no_result_and_preserves_partial_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    def stopped(arguments: list[str]) -> int:
        Path(arguments[-1]).with_suffix(".partial.jsonl").write_text("a unit\n")
        return 75

    monkeypatch.setattr("dithc.cli.main", stopped)
    arguments = ("table4", "--config", CONFIG, *NODE, "--cell", "fp32", "--out", tmp_path / "fp32.json")
    assert paper(*arguments) == 75
    assert not (tmp_path / "fp32.json").exists()
    assert [path.name for path in (tmp_path / ".fp32").iterdir()] == ["fp32.partial.jsonl"]
    monkeypatch.setattr(
        "dithc.cli.main", lambda arguments: Path(arguments[-1]).write_text(dump_checksummed({"cases": []})) and 0
    )
    assert paper(*arguments) == 0
    assert [path.name for path in outputs.files_of(tmp_path)] == ["fp32.json"]


def test_cell_without_a_result_is_skipped_with_the_reason(folder: Path) -> None:
    path = folder / "measured-xl-2.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(dump_checksummed(content | {"result": None, "reason": "`dithc bench scaling` ended with status 1"}))
    found = [cell for cell in document(folder).cells if cell.status == "skipped"]
    assert found
    assert {cell.reason for cell in found} == {"`dithc bench scaling` ended with status 1"}


def test_cell_without_a_gpu_contains_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = tmp_path / "cuda-fp32.json"
    assert paper("sec56", "--config", CONFIG, *NODE, "--cell", "cuda-fp32", "--out", out) == 0
    content = load_checksummed(out.read_text())
    assert content["result"] is None
    assert "finds no GPU" in content["reason"]
    assert "ended with status 2" in content["reason"]
    assert "\n" not in content["reason"]


@pytest.mark.parametrize("damage", ["missing", "truncated", "altered", "a folder"])
def test_damaged_cell_is_rejected_with_the_file_path(
    folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "simulated-strong.json"
    text = path.read_text()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "missing":
        path.write_text(text[:-20] if damage == "truncated" else text.replace('"fig11"', '"fig10"'))
    out = folder.parent / "fig11.json"
    assert paper("fig11", "--config", CONFIG, *NODE, "--cells", folder, "--out", out) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "fix:" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("table9",), "one of table1"),
        (("table4", "--config", CONFIG, "--cell", "fp64", "--out", "x.json"), "fp32, bf16"),
        (("table4", "--config", CONFIG), "--out"),
        (("table4", "--out", "x.json"), "--config"),
        (("page", "--results", "none.json", "--out", "x.html"), "none.json"),
    ],
)
def test_invalid_reproduce_arguments_are_rejected(
    arguments: tuple[object, ...], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert paper(*arguments) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "fix:" in error


def test_lock_allows_one_measurement_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_cell.tempfile, "gettempdir", lambda: str(tmp_path))
    with (
        reproduce_cell._alone(),
        (tmp_path / next(tmp_path.iterdir()).name).open("w") as file,
        pytest.raises(BlockingIOError),
    ):
        reproduce_cell.fcntl.flock(file, reproduce_cell.fcntl.LOCK_EX | reproduce_cell.fcntl.LOCK_NB)


@pytest.mark.slow
def test_rules_plan_all_targets_and_reuse_finished_cells(project: Path) -> None:
    settings = ("--profile", "profiles/local", "--configfile", "config/experiments/paper-ci.yaml")
    done = snakemake(project, "paper", *settings, "-n")
    assert done.returncode == 0, done.stdout[-3000:]
    cells = {
        line.split()[-1]
        for line in done.stdout.splitlines()
        if line.startswith("    output: results/paper-ci/paper/cells/")
    }
    assert len(cells) > 40
    made = "results/paper-ci/paper/cells/fig10/simulated-weak.json"
    assert made in cells
    assert snakemake(project, made, *settings, "--quiet", "all").returncode == 0
    again = snakemake(project, "fig10", *settings, "-n").stdout
    assert f"output: {made}" not in again
    assert "fig10/measured-s-2.json" in again


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "config"), [("profiles/local", "paper-node"), ("cluster", "paper")])
def test_every_target_is_planned_at_every_scale(project: Path, profile: str, config: str) -> None:
    settings = ("--profile", profile, "--configfile", f"config/experiments/{config}.yaml", "-n")
    done = snakemake(project, *TARGETS, "paper", *settings)
    assert done.returncode == (config == "paper"), done.stdout[-3000:]  # 1: its images are not here
    for target in TARGETS:
        assert f"paper/{target}.json" in done.stdout
        assert f"paper/{target}.html" in done.stdout
