"""The generator's folder appears whole or not at all, is the same each time, and never touches anything else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.data.synthetic import image_folder, sentinel2, synthesize
from dithc.log import UserError
from dithc.runs import Manifest, outputs, sha256_file

SMALL = {
    "sentinel2": {"scenes": 1, "size": 96},
    "gaofen2": {"scenes": 1, "size": 40},
    "image-folder": {"scenes": 2, "size": 24, "classes": 2},
}


def _content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in outputs.files_of(folder)}


@pytest.mark.parametrize("kind", SMALL)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, kind: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(kind, tmp_path / name, seed=seed, **SMALL[kind])
    first, again, other = (_content(tmp_path / name) for name in "abc")
    assert first == again
    assert set(first) == set(other)
    assert first["synthetic.json"] != other["synthetic.json"]


def test_the_record_lists_every_file_with_size_and_hash(tmp_path: Path) -> None:
    record = synthesize("gaofen2", tmp_path / "out", seed=5, **SMALL["gaofen2"])
    assert record == tmp_path / "out" / "synthetic.json"
    content = json.loads(record.read_text())
    assert (content["kind"], content["seed"], content["gsd"], content["classes"]) == ("gaofen2", 5, 4.0, None)
    assert set(content["files"]) == set(_content(record.parent)) - {"synthetic.json"}
    for name, entry in content["files"].items():
        assert entry == {
            "bytes": (record.parent / name).stat().st_size,
            "sha256": sha256_file(record.parent / name),
        }


def test_a_finished_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    synthesize("image-folder", out, **SMALL["image-folder"])
    monkeypatch.setattr(image_folder, "write_photograph", lambda *_, **__: pytest.fail("written again"))
    assert synthesize("image-folder", out, **SMALL["image-folder"]) == out / "synthetic.json"


def test_a_result_of_other_arguments_is_refused(tmp_path: Path) -> None:
    synthesize("image-folder", tmp_path / "out", seed=1, **SMALL["image-folder"])
    before = _content(tmp_path)
    with pytest.raises(UserError, match="seed 1"):
        synthesize("image-folder", tmp_path / "out", seed=2, **SMALL["image-folder"])
    assert _content(tmp_path) == before


def test_a_failure_half_way_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sentinel2, "write_manifest", full_disk)
    with pytest.raises(UserError, match="No space left"):
        synthesize("sentinel2", tmp_path / "out", **SMALL["sentinel2"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("landsat", {}, "landsat"),
        ("sentinel2", {"size": 100}, "multiple of 6(.|\n)*96 or 102"),
        ("sentinel2", {"size": 90}, "--size is out of range"),
        ("sentinel2", {"size": 12_000}, "--size is out of range"),
        ("sentinel2", {"scenes": 0}, "--scenes is out of range"),
        ("sentinel2", {"scenes": 97}, "1 to 96"),
        ("sentinel2", {"classes": 3}, "--classes has no meaning for sentinel2"),
        ("image-folder", {"classes": 9}, "1 to 8"),
        ("image-folder", {"gsd": 2.0}, "--gsd has no meaning"),
        ("gaofen2", {"gsd": 0.0}, "--gsd is out of range"),
        ("gaofen2", {"seed": -1}, "--seed is out of range"),
    ],
)
def test_arguments_out_of_range_are_refused_before_anything_is_written(
    tmp_path: Path, kind: str, arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        synthesize(kind, tmp_path / "out", **arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_the_verb_writes_the_folder_and_names_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["synthesize", "--kind", "gaofen2", "--out", str(out), "--seed", "2", "--size", "32", "--gsd", "8"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == str(out / "synthetic.json")
    assert json.loads((out / "synthetic.json").read_text())["gsd"] == 8.0
    assert main([*words[:-1], "5"]) == 2


def test_replacing_gives_the_result_of_the_new_arguments(tmp_path: Path) -> None:
    for name in ("out", "fresh"):
        synthesize("image-folder", tmp_path / name, seed=2, **SMALL["image-folder"])
    synthesize("image-folder", tmp_path / "out", seed=1, replace=True, **SMALL["image-folder"])
    synthesize("image-folder", tmp_path / "out", seed=2, replace=True, **SMALL["image-folder"])
    assert _content(tmp_path / "out") == _content(tmp_path / "fresh")


@pytest.mark.parametrize("spoil", ["older", "cut"])
def test_replacing_mends_results_of_an_older_generator_and_damaged_ones(tmp_path: Path, spoil: str) -> None:
    record = synthesize("image-folder", tmp_path / "out", **SMALL["image-folder"])
    good = _content(tmp_path)
    if spoil == "older":
        record.write_text(json.dumps({**json.loads(record.read_text()), "generator": 0}))
    else:
        (tmp_path / "out" / "n00000001" / "n00000001_1.JPEG").write_bytes(b"cut")
    with pytest.raises(UserError, match="in the way"):
        synthesize("image-folder", tmp_path / "out", **SMALL["image-folder"])
    synthesize("image-folder", tmp_path / "out", replace=True, **SMALL["image-folder"])
    assert _content(tmp_path) == good


@pytest.mark.parametrize("record", [True, False])
def test_foreign_content_is_refused_also_when_replacing(tmp_path: Path, record: bool) -> None:
    out = tmp_path / "out"
    if record:
        synthesize("image-folder", out, seed=1, **SMALL["image-folder"])
    out.mkdir(exist_ok=True)
    (out / "thesis.txt").write_text("precious")
    before = _content(tmp_path)
    with pytest.raises(UserError, match="thesis.txt" if record else "in the way"):
        synthesize("image-folder", out, seed=2, replace=True, **SMALL["image-folder"])
    assert _content(tmp_path) == before


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".out.tmp.host.1").mkdir()
    synthesize("image-folder", tmp_path / "out", **SMALL["image-folder"])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_manifest_of_a_data_set_lists_every_file_and_follows_the_configuration(
    tmp_path: Path, config: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"kind": "image-folder", "size": 16, "synthetic": {"scenes": 2, "size": 24, "classes": 2}}
    out = tmp_path / "inputs" / "manifest.json"
    digests = []
    for seed in (1, 1, 2):
        words = ["synthesize", "--config", str(config(source=source, seed=seed)), "--dataset", "set"]
        assert main([*words, "--out", str(out)]) == 0
        manifest = Manifest.read(out)
        assert {entry["path"] for entry in manifest.files} == set(_content(out.parent)) - {
            "manifest.json",
            ".manifest.made",
        }
        assert manifest.numbers["files"] == len(manifest.files)
        digests.append(manifest.digest)
    assert digests[0] == digests[1] != digests[2]
    picture = next(out.parent.rglob("*.JPEG"))
    picture.write_bytes(picture.read_bytes()[:-1] + b"?")
    assert main(["verify", str(out)]) == 1
    assert str(picture) in capsys.readouterr().out


def test_options_of_a_kind_are_refused_beside_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "--config", "x.json", "--dataset", "set", "--out", str(tmp_path / "out" / "manifest.json")]
    assert main([*words, "--seed", "0", "--gsd", "2"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("--seed 0, --gsd 2.0", "expected:", "fix:"))
    assert not (tmp_path / "out").exists()
