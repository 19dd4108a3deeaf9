"""`dithc show` describes and draws outputs."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dithc.cli import main
from dithc.config import load_experiment
from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.core.integrity import dump_checksummed_line
from dithc.data import write_png

PNG = b"\x89PNG"


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]):
    """Return a function that executes `dithc show`, checks its status and returns its output."""

    def show(*arguments: object, status: int = 0) -> str:
        assert main(["show", *map(str, arguments)]) == status
        return capsys.readouterr().out

    return show


@pytest.fixture
def latents(tmp_path: Path) -> Path:
    """Return a finished stage of latents."""
    folder = tmp_path / "latents" / "s2"
    folder.mkdir(parents=True)
    array = np.random.default_rng(0).normal(size=(10, 8, 16, 16)).astype(np.float16)
    np.save(folder / "shard-00000.npy", array)
    entries = Manifest.entries(folder, [folder / "shard-00000.npy"])
    Manifest(
        stage="latents", name="s2", spec={"codec": "small"}, summary={"count": 10, "shape": [4, 16, 16]}, files=entries
    ).write(folder / "manifest.json")
    return folder


def metrics(folder: Path) -> Path:
    """Write metrics.jsonl of thirty steps."""
    folder.mkdir(parents=True)
    rows = [{"step": step, "loss": 1 / step, "lr": 1e-4} for step in range(1, 31)]
    (folder / "metrics.jsonl").write_text("".join(map(dump_checksummed_line, rows)))
    return folder / "metrics.jsonl"


def test_manifest_is_described_by_file_and_by_folder(show, latents: Path) -> None:
    for path in (latents, latents / "manifest.json"):
        text = show(path)
        for part in ("stage latents: s2", "1 files, 40.12 KiB", "count: 10", "shape: [4, 16, 16]", 'codec: "small"'):
            assert part in text
    assert "latents/s2" in show(latents.parent.parent)


def test_array_is_described_with_shape_and_range(show, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1.0, np.nan], [3.0, -2.0]]))
    text = show(tmp_path / "a.npy")
    assert "float64 (2, 2)" in text
    assert "1 numbers not finite" in text
    assert "-2 to 3" in text


def test_checkpoint_and_store_are_described(show, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run-0123")
    saved = store.save(
        40, lambda folder: np.save(folder / "w.npy", np.zeros(9)), meta={"seed": 7, "model": {"depth": 12}}
    )
    store.event("started", step=0)
    text = show(saved.folder)
    assert "at step 40" in text
    assert "model.depth: 12" in text
    text = show(store.folder)
    assert "1 checkpoints" in text
    assert "started" in text


def test_weights_are_listed_by_shape(show, tmp_path: Path) -> None:
    head = json.dumps({"a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(24))
    text = show(tmp_path / "m.safetensors")
    assert "1 tensors, 6 numbers" in text
    assert "a.weight: F32 (2, 3)" in text


def test_metrics_are_described_and_drawn(show, tmp_path: Path) -> None:
    text = show(metrics(tmp_path / "metrics"), "--png", tmp_path / "loss.png")
    assert "30 steps, 1 to 30" in text
    assert "loss: first 1, last 0.0333333" in text
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_events_are_listed_with_time_and_details(show, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run-0123")
    store.event("started", step=0)
    store.event("stopped", step=3, why="a signal")
    with (store.folder / "events.jsonl").open("a") as file:
        file.write('{"event": "torn')
    heading, first, last = show(store.folder / "events.jsonl").splitlines()
    assert heading == f"events {store.folder / 'events.jsonl'}: 2"
    written = json.loads((store.folder / "events.jsonl").read_text().splitlines()[0])
    assert first.startswith(f"  {written['time']} started: step 0")
    assert "stopped: step 3, why a signal" in last


@pytest.mark.slow
def test_run_is_drawn_from_manifest_store_and_checkpoint(show, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "store" / "run-0123")
    path = metrics(store.folder / "metrics")
    saved = store.save(30, lambda folder: np.save(folder / "w.npy", np.zeros(9)), meta={})
    manifest = tmp_path / "runs" / "base" / "step_0000030.json"
    numbers = {"step": 30, "seconds_per_step_median": 0.5, "metrics": str(path)}
    Manifest(stage="train", name="base", spec={}, summary=numbers).write(manifest)
    for number, place in enumerate((manifest, manifest.parent, store.folder, saved.folder)):
        show(place, "--png", tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes().startswith(PNG)


def test_stage_is_drawn_from_the_grid(show, latents: Path, tmp_path: Path) -> None:
    show(latents, "--png", tmp_path / "shard.png", status=2)
    write_png(latents / "grid.png", np.zeros((4, 4, 3), np.uint8))
    show(latents, "--png", tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes() == (latents / "grid.png").read_bytes()
    metrics(latents / "metrics")  # the layout of a trained codec, with the loss drawn from its path
    show(latents, "--png", tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (latents / "grid.png").read_bytes()


def test_report_json_is_described(show, tmp_path: Path) -> None:
    score = {"fid": 12.5, "floor": 3.25, "n_generated": 64, "n_real": 99, "comparable_to_published": False}
    item = {"name": "s2-final", "label": "after fine-tuning", "dataset": "s2", "checkpoint": "final", "score": score}
    content = {"name": "demo", "title": "Demo", "written": "now", "warnings": [], "origins": []}
    content |= {"datasets": [{"name": "s2", "title": "S2"}], "evaluations": [item, {**item, "score": None}]}
    (tmp_path / "report.json").write_text(json.dumps(content))
    text = show(tmp_path / "report.json")
    assert "FID 12.5, floor 3.25, 64 against 99 real, NOT COMPARABLE" in text
    assert "not run" in text


DEEP = b"[" * 100_000 + b"]" * 100_000
HEAD = b'{"x":' + DEEP + b"}"
DAMAGED = {
    "a.npy": b"\x93NUMPY",
    "b.json": b"{",
    "list.json": b"[1]",
    "short.safetensors": b"1234",
    "deep.json": DEEP,
    "deep.safetensors": struct.pack("<Q", len(HEAD)) + HEAD,
    "report.json": b'{"origins": 1, "evaluations": 2}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_user_errors(show, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    show(tmp_path / name, status=2)


ODD_LINES = {"deep": DEEP.decode(), "object": '{"step": 2, "loss": {}}', "no UTF-8": "\xff"}
ODD_LINES["huge"] = f'{{"step": 2, "loss": {10**400}}}'


@pytest.mark.parametrize("line", ODD_LINES.values(), ids=ODD_LINES)
def test_invalid_metrics_lines_are_skipped(show, line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{dump_checksummed_line({'step': 1, 'loss': 0.5})}{line}\n")
    assert "1 steps, 1 to 1" in show(tmp_path / "metrics.jsonl", "--png", tmp_path / "loss.png")


@pytest.mark.parametrize("name", ["config.json", "lease.json", "fid/score/manifest.json"])
@pytest.mark.slow
def test_pipes_among_results_do_not_block_status_and_show(name: str, tmp_path: Path) -> None:
    content = load_experiment([Path(__file__).parents[2] / "workflow" / "small.yaml"]).model_dump(mode="json")
    (tmp_path / "config.json").write_text(json.dumps(content))
    pipe = tmp_path / name.replace("score", next(iter(content["evaluations"])))
    pipe.parent.mkdir(parents=True, exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    for command in (["status", str(tmp_path)], ["show", str(pipe.parent)]):
        words_ = [sys.executable, "-m", "dithc", *command]
        done = subprocess.run(words_, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr


def test_unknown_and_missing_paths_are_user_errors(show, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("?")
    for path in (tmp_path / "notes.txt", tmp_path / "gone", tmp_path):
        show(path, status=2)


def test_result_without_an_image_is_rejected_without_writing_a_file(show, tmp_path: Path) -> None:
    Manifest(stage="extractor", name="s2", spec={}, summary={"loss": 1.0}).write(tmp_path / "own" / "manifest.json")
    show(tmp_path / "own", "--png", tmp_path / "x.png", status=2)
    assert not (tmp_path / "x.png").exists()
