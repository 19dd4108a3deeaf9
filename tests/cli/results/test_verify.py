"""`dithc verify` finds missing, truncated and altered files, and no others."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dithc.cli import main
from dithc.core.artifacts import CheckpointStore, Manifest
from dithc.core.integrity import dump_checksummed_line


def write(path: Path) -> None:
    path.write_bytes(b"w" * 50)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Build a stage's folder with manifest, shards, sidecars and index, and a store with a checkpoint."""
    folder = tmp_path / "results" / "latents" / "s2"
    folder.mkdir(parents=True)
    paths = [folder / f"shard-0000{number}.npy" for number in range(3)]
    for path in paths:
        path.write_bytes(path.name.encode() * 100)
    entries = Manifest.entries(folder, paths)
    (folder / "index.json").write_text(json.dumps({"count": 3, "shards": entries}))
    (folder / "shard-00000.json").write_text(json.dumps({"entry": entries[0], "origin": {"sha256": "of the codec"}}))
    hashed = hashlib.sha256(paths[1].read_bytes()).hexdigest()
    (folder / "shard-00001.json").write_text(json.dumps({"sha256": "of the extractor", "file_sha256": hashed}))
    message = {"identity": {"path": "elsewhere", "sha256": "of the checkpoint"}, "files": entries[2:]}
    (folder / "shard-00002.json").write_text(json.dumps(message))
    Manifest(stage="latents", name="s2", spec={}, files=entries).write(folder / "manifest.json")
    store = CheckpointStore(tmp_path / "results" / "store" / "run-0123")
    store.save(10, lambda inside: write(inside / "model.safetensors"), meta={})
    return tmp_path / "results"


REPAIR = ["verify", "--repair", "--profile", str(Path(__file__).parents[3] / "profiles/local")]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_intact_results_pass_and_each_file_is_read_once(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(results), "--json", str(results.parent / "found.json")]) == 0
    size = sum(path.stat().st_size for name in ("*.npy", "*.safetensors") for path in results.rglob(name))
    found = json.loads((results.parent / "found.json").read_text())
    assert found == {"documents": 7, "files": 4, "bytes": size, "problems": []}
    assert lines(capsys) == [f"4 files ({size:,} bytes) of 7 documents: all intact"]


def test_missing_truncated_and_altered_files_are_reported_with_status_1(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = sorted(results.rglob("shard-*.npy"))
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    altered = bytearray(shards[2].read_bytes())
    altered[7] ^= 1
    shards[2].write_bytes(altered)
    assert main(["verify", str(results)]) == 1
    *output, verdict = lines(capsys)
    faults = output[::2]
    assert all("workflow rebuilds it" in line for line in output[1::2])
    assert [fault.split(" (listed")[0] for fault in faults[:3]] == [
        f"{shards[0]} is missing",
        f"{shards[1]} has 1499 bytes, 1500 were written",
        f"{shards[2]} has other bytes than were written (SHA-256 differs)",
    ]
    assert len(faults) == 3
    assert verdict.endswith("3 faults")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", "w" * 49 + "x", "SHA-256 differs"),
        *(("manifest.json", text, "cannot be used") for text in ("{", "[]", '{"stage": 1, "digest": 2}', "")),
    ],
)
def test_altered_weights_and_damaged_documents_are_reported(
    results: Path, name: str, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    next(results.rglob(name)).write_text(content)
    assert main(["verify", str(results)]) == 1
    assert message in lines(capsys)[0]


def test_edited_manifest_is_detected(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(results.rglob("manifest.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"spec": {"seed": 1}}))
    assert main(["verify", str(path)]) == 1
    assert "changed after it was written" in lines(capsys)[0]


def test_folders_being_written_are_skipped(results: Path) -> None:
    unfinished = results / "store" / "run-0123" / ".step_0000020.tmp.host.1"
    unfinished.mkdir()
    (unfinished / "checkpoint.json").write_text("{")
    assert main(["verify", str(results)]) == 0


def test_missing_and_empty_paths_are_user_errors(tmp_path: Path) -> None:
    assert main(["verify", str(tmp_path / "gone")]) == 2
    assert main(["verify", str(tmp_path)]) == 2


def test_repair_deletes_no_files_outside_the_given_folder(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / "mine.txt"
    foreign.write_text("of another project")
    folder = results / "fid" / "score"
    folder.mkdir(parents=True)
    (folder / "inside.bin").write_bytes(b"x")
    entries = Manifest.entries(folder, [foreign, folder / "inside.bin"])
    Manifest(stage="extractor", name="x", spec={}, files=[{**one, "sha256": "0" * 64} for one in entries]).write(
        folder / "manifest.json"
    )
    workflow = fake_experiment(results, monkeypatch)
    assert main([*REPAIR, str(results)]) == 1
    assert foreign.read_text() == "of another project"
    assert not (folder / "inside.bin").exists()
    assert workflow == [[]]


def test_repair_preserves_files_not_written_by_dithc(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = results / "tiles" / "app" / "manifest.json"
    app.parent.mkdir(parents=True)
    app.write_text('{"name": "my web app", "icons": []}')
    (results / "fid").mkdir()
    (results / "fid" / "step_0000001.json").write_text("no JSON")
    (shard := next(results.rglob("shard-00000.npy"))).write_bytes(content := b"of the user " * 1000)
    fake_experiment(results, monkeypatch)
    assert main([*REPAIR, str(results)]) == 1
    assert app.exists()
    assert (results / "fid" / "step_0000001.json").exists()
    assert not shard.exists(), "the workflow could not rebuild it"
    assert shard.with_name("shard-00000.npy.altered").read_bytes() == content
    assert "rebuilds it after it is renamed" in capsys.readouterr().out


def test_repair_without_a_profile_deletes_no_file(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard := next(results.rglob("shard-00000.npy"))).write_bytes(b"x")
    fake_experiment(results, monkeypatch)
    assert main(["verify", str(results), "--repair", "--profile", "profiles/nonexistent"]) == 2
    assert shard.exists()


def fake_experiment(results: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """Set up an experiment with these results, and a workflow that records the leases at each call."""
    runs: list[list[Path]] = []

    def workflow(arguments: list[str]) -> int:
        runs.append(list(results.rglob("*lease.json")))
        return 0

    (results / "config.json").write_text("{}")
    experiment = SimpleNamespace(results=str(results.parent), name=results.name)
    monkeypatch.setattr("dithc.config.load_experiment", lambda files: experiment)
    monkeypatch.setattr("dithc.cli.main", workflow)
    return runs


@pytest.mark.parametrize(
    "place", ["lease.json", "store/run-0123/lease.json", "latents/.s2.lease.json", "../.results.lease.json"]
)
def test_repair_is_rejected_with_an_active_lease_in_the_results(
    results: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = fake_experiment(results, monkeypatch)
    shard = next(results.rglob("shard-*.npy"))
    shard.write_bytes(b"x")
    works = (
        "import sys, pathlib; from dithc.core.artifacts import Lease; lease = Lease(pathlib.Path(sys.argv[1]).parent);"
    )
    works += "lease.path = pathlib.Path(sys.argv[1]); lease.__enter__(); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", works, str(results / place)], **pipes) as orphan:  # type: ignore[call-overload]
        try:
            assert orphan.stdout.readline() == b"\n"
            assert main([*REPAIR, str(results)]) == 76
            assert f"process {orphan.pid} on" in capsys.readouterr().err
            assert shard.exists()
            assert not workflow
        finally:
            orphan.kill()
    assert main([*REPAIR, str(results)]) == 1  # no workflow rebuilt it
    assert not shard.exists()
    assert workflow == [[]]


def test_unreadable_folder_ends_with_status_2(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refused(path: str) -> object:
        if str(path).endswith("latents"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refused)
    assert main(["verify", str(results)]) == 2


def test_linked_folders_are_verified_despite_loops(results: Path, tmp_path: Path) -> None:
    (results / "latents").rename(tmp_path / "scratch")
    (results / "latents").symlink_to(tmp_path / "scratch")
    (results / "latents" / "loop").symlink_to(results)
    assert main(["verify", str(results)]) == 0
    next(results.glob("latents/s2/*.npy")).write_bytes(b"x")
    assert main(["verify", str(results)]) == 1


def test_altered_hidden_scene_record_is_detected(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = results / "latents" / "s2" / ".scenes.jsonl"
    record.write_text(dump_checksummed_line({"scene": "a"}) + dump_checksummed_line({"scene": "b"}))
    assert main(["verify", str(results)]) == 0
    record.write_bytes(record.read_bytes().replace(b'"a"', b'"c"'))
    capsys.readouterr()
    assert main(["verify", str(results)]) == 1
    assert str(record) in capsys.readouterr().out
