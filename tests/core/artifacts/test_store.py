"""Store: checkpoints are complete, damaged checkpoints are skipped, and pruning keeps the requested checkpoints."""

import io
from pathlib import Path

import pytest

from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.logging import UserError


def save(store: CheckpointStore, step: int, content: bytes = b"weights", **meta: object) -> CheckpointStore.Checkpoint:
    metadata = meta or {"step": step}
    return store.save(step, lambda folder: [(folder / "model.safetensors").write_bytes(content)], meta=metadata)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run-0123456789ab")


@pytest.mark.parametrize("damage", ["cut", "altered", "missing", "commit"])
def test_damaged_checkpoint_is_skipped_with_a_logged_reason(store, damage, caplog):
    for step in (1, 2):
        save(store, step)
    path = store.path(2) / "model.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:3])
    elif damage == "altered":
        path.write_bytes(b"Weights")
    elif damage == "missing":
        path.unlink()
    else:
        (store.path(2) / "checkpoint.json").write_text("{")
    assert store.newest().step == 1
    assert "skipping damaged checkpoint" in caplog.text
    assert "checkpoint passed over" in (store.folder / "events.jsonl").read_text()


def test_several_damaged_checkpoints_raise_an_error_with_steps_and_flag(store, caplog):
    for step in (1, 2, 3):
        save(store, step)
    (store.path(3) / "model.safetensors").write_bytes(b"Weights")
    (store.path(2) / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"2 checkpoint.s. in .* are damaged") as error:
        store.newest()
    for text in (
        "step 3 (model.safetensors is truncated or altered)",
        "step 2 (model.safetensors is missing)",
        "continues from step 1",
        "--allow-checkpoint-rollback",
    ):
        assert text in str(error.value)
    assert len(str(error.value).splitlines()) == 4
    assert "skipping damaged checkpoint" not in caplog.text
    assert store.newest(at_most=2).step == 1, "a single damaged checkpoint is skipped"
    assert store.newest(allow_checkpoint_rollback=True).step == 1
    assert caplog.text.count("skipping damaged checkpoint") == 3


@pytest.mark.parametrize("step", [0, 1])
def test_only_checkpoint_is_rejected_if_damaged_after_training_steps(store, step):
    save(store, step)
    (store.path(step) / "model.safetensors").write_bytes(b"Weights")
    if step == 0:
        assert store.newest() is None
    else:
        with pytest.raises(UserError, match="training then restarts"):
            store.newest()
    assert store.newest(allow_checkpoint_rollback=True) is None


def test_flipped_bits_of_a_commit_file_are_detected(store):
    save(store, 2, seed=7)
    path = store.path(2) / "checkpoint.json"
    written = path.read_bytes()
    for bit in range(0, 8 * len(written), 5):
        altered = bytearray(written)
        altered[bit // 8] ^= 1 << bit % 8
        path.write_bytes(altered)
        with pytest.raises(UserError, match="damaged"):
            store.open(2)


def test_checksummed_commit_file_with_wrong_step_or_no_files_is_rejected(store):
    save(store, 2)
    path = store.path(2) / "checkpoint.json"
    content = load_checksummed(path.read_text())
    for change in ({"files": []}, {"step": 3}):
        path.write_text(dump_checksummed(content | change))
        with pytest.raises(UserError, match="damaged"):
            store.open(2)


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.json"])
def test_unreadable_checkpoint_raises_an_error(store, name, monkeypatch):
    for step in (1, 2):
        save(store, step)
    unreadable = store.path(2) / name
    open_file = io.open

    def fail(file, *arguments, **options):
        if str(file) == str(unreadable):
            raise PermissionError(13, "Permission denied", str(file))
        return open_file(file, *arguments, **options)

    monkeypatch.setattr(io, "open", fail)
    for read in (store.newest, lambda: store.open(2)):
        with pytest.raises(UserError, match=r"cannot be read[\s\S]*Permission denied[\s\S]*repair the file system"):
            read()


def test_failed_write_leaves_only_the_earlier_checkpoint(store):
    save(store, 1)

    def full(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"No space left[\s\S]*last complete checkpoint \(1\)"):
        store.save(2, full, meta={})
    assert store.steps() == [1]
    assert [path.name for path in store.folder.iterdir()] == ["step_0000001"]


def test_prune_keeps_first_last_multiple_and_pinned_checkpoints(store):
    for step in range(11):
        save(store, step)
    store.pin(3)
    store.prune(saved=10, keep_last=2, keep_every=[4, 7])
    assert store.steps() == [0, 3, 4, 7, 8, 9, 10]


def test_prune_counts_from_the_saved_step_and_keeps_later_steps(store):
    for step in (0, 120, 240):
        save(store, step)
    for step, left in ((40, [0, 40, 120, 240]), (80, [0, 80, 120, 240]), (120, [0, 120, 240])):
        save(store, step)
        store.prune(saved=step, keep_last=1, keep_every=[240])
        assert store.steps() == left
        assert store.newest(at_most=step).step == step


def test_pin_persists_after_rewriting_the_checkpoint(store):
    save(store, 3)
    store.pin(3)
    for step in (3, 4, 5):
        save(store, step)
    store.prune(saved=5, keep_last=1, keep_every=[10])
    assert store.steps() == [3, 5]
    assert [entry["path"] for entry in store.open(3).files] == ["model.safetensors"]


@pytest.mark.parametrize("step", [0, 7])
def test_fix_for_a_damaged_checkpoint_contains_the_manifest_path(store, step):
    manifest = Path("results/runs/step_0000007.json")
    with pytest.raises(UserError, match=rf"delete [\s\S]*folder[\s\S]*rerun the workflow[\s\S]*{manifest}"):
        store.open(step, manifest=manifest)
    with pytest.raises(UserError, match="training continues from the next older"):
        store.open(step)


def test_sweep_removes_incomplete_checkpoints(store):
    for step in (1, 3):
        save(store, step)
    (store.path(3) / "checkpoint.json").unlink()
    (store.folder / ".step_0000002.tmp.host.1").mkdir()
    assert store.steps() == [1]
    store.sweep()
    assert sorted(path.name for path in store.folder.iterdir()) == ["step_0000001"]


def test_store_is_found_from_the_manifest_of_a_run(store, tmp_path):
    assert store.newest() is None
    found = save(store, 7)
    assert (found, found.meta) == (store.open(7), {"step": 7})
    out = tmp_path / "results" / "runs" / "step_0000007.json"
    entries = Manifest.entries(out.parent, [found.weights("raw")])
    Manifest(
        stage="train", name="run", spec={}, summary={"step": 7, "seconds_per_step_median": 0.5}, files=entries
    ).write(out)
    opened, step = CheckpointStore.of_run(out)
    assert (opened.folder.resolve(), step) == (store.folder.resolve(), 7)
    Manifest(stage="train", name="run", spec={}, summary={"step": 7, "seconds_per_step_median": 0.5}).write(out)
    with pytest.raises(UserError, match="lists no checkpoint"):
        CheckpointStore.of_run(out)
