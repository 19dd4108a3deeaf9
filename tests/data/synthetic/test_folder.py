"""Output folders of the generator: complete or absent, reproducible, and without effect on other files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.core.artifacts import Manifest, outputs
from dithc.core.logging import UserError
from dithc.data.synthetic import sentinel2, synthesize

SMALL = {
    "sentinel2": {"scenes": 1, "size": 96},
    "gaofen2": {"scenes": 1, "size": 40},
    "image-folder": {"scenes": 2, "size": 24, "classes": 2},
}


def _content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in outputs.files_of(folder)}


@pytest.mark.parametrize("kind", SMALL)
def test_equal_seeds_produce_identical_files_and_other_seeds_differ(tmp_path: Path, kind: str) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(kind, tmp_path / name, seed=seed, **SMALL[kind])
    first, again, other = (_content(tmp_path / name) for name in "abc")
    assert first == again
    assert set(first) == set(other)
    assert first != other


def test_failed_generation_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sentinel2, "write_manifest", full_disk)
    with pytest.raises(UserError, match="No space left"):
        synthesize("sentinel2", tmp_path / "out", **SMALL["sentinel2"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("sentinel2", {"size": 90}, r"(?s)`synthetic\.size` is out of range for sentinel2.*96 to 10980"),
        ("sentinel2", {"scenes": 97}, "1 to 96"),
        ("image-folder", {"classes": 5}, "1 to 4"),
        ("gaofen2", {"gsd": 0.0}, "`synthetic.gsd` is out of range"),
    ],
)
def test_arguments_out_of_range_are_rejected_before_writing(
    tmp_path: Path, kind: str, arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        synthesize(kind, tmp_path / "out", **SMALL[kind] | arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_manifest_lists_every_file_and_the_digest_depends_on_the_seed(
    tmp_path: Path, config: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"kind": "image-folder", "size": 16, "synthetic": {"scenes": 2, "size": 24, "classes": 2}}
    out = tmp_path / "inputs" / "manifest.json"
    digests = []
    for seed in (1, 1, 2):
        command = ["synthesize", "--config", str(config(source=source, seed=seed)), "--dataset", "set"]
        assert main([*command, "--out", str(out)]) == 0
        manifest = Manifest.read(out)
        assert {entry["path"] for entry in manifest.files} == set(_content(out.parent)) - {
            "manifest.json",
            ".manifest.provenance.json",
        }
        assert manifest.summary["files"] == len(manifest.files)
        digests.append(manifest.digest)
    assert digests[0] == digests[1] != digests[2]
    picture = next(out.parent.rglob("*.JPEG"))
    picture.write_bytes(picture.read_bytes()[:-1] + b"?")
    assert main(["verify", str(out)]) == 1
    assert str(picture) in capsys.readouterr().out
