"""A full disk or an unreadable file causes four lines and status 2. Complete files stay unchanged."""

import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dithc.cli import main
from dithc.core.artifacts import Manifest, digest
from dithc.data import Tiles
from tests.cli.small_experiment import SmallExperiment


class Bench(SmallExperiment):
    """Small experiment; `words[verb]` are the arguments of its commands."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, scenes=12, num_images=4, steps=2)
        tiles = ("--tiles", self.manifest("tiles"))
        pair = ("--real", self.manifest("real"), "--generated", self.manifest("generated"))
        report = ["report", *self.commands["tiles"][1:3], "--manifests", self.manifest("tiles")]
        self.commands |= {
            "features": self.features(*tiles, out="real"),
            "features of samples": self.features("--samples", self.manifest("samples"), out="generated"),
            "fid": self.line("fid", "--evaluation", "score", *pair, *tiles, out="fid"),
            "report": [*report, "--out", str(root / "report.html")],
        }

    def sample(self) -> None:
        """Write the train tiles, rotated by 90 degrees, as generated images in two files."""
        tiles, folder = Tiles(self.root / "tiles"), self.root / "samples"
        folder.mkdir()
        images = np.rot90(tiles.rgb(tiles.rows("train")), axes=(2, 3))
        for number, part in enumerate(np.array_split(images, [5])):
            np.save(folder / f"rgb-{number:05d}.npy", part)
        numbers = {"images": len(images), "rendering_digest": digest(tiles.info["display"])}
        files = Manifest.entries(folder, sorted(folder.iterdir()))
        Manifest(stage="sample", name="score", spec={}, files=files, summary=numbers).write(folder / "manifest.json")

    def content(self) -> dict[str, bytes]:
        """Return all files except metrics, which log attempts."""
        files = (path for path in self.root.rglob("*") if path.is_file() and "metrics" not in path.parts)
        return {str(path.relative_to(self.root)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def finished_experiment(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return the experiment after all commands."""
    bench = Bench(tmp_path_factory.mktemp("bench"))
    bench.run("synthesize", "ingest", "tiles", "extractor", "features")
    bench.sample()
    bench.run("features of samples", "fid", "report")
    return bench


@pytest.fixture
def bench(finished_experiment: Bench) -> Iterator[Bench]:
    """Yield the finished experiment. Its configuration is restored after the test."""
    yield finished_experiment
    finished_experiment.configure(seed=0)


def make_failing(monkeypatch: pytest.MonkeyPatch, function: str, number: int) -> None:
    """Make `os.fsync` or `os.replace` fail."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, function, fail)


def four_lines(output: str) -> bool:
    """Test for the form of a user error without a traceback."""
    return all(key in output for key in ("got:", "expected:", "fix:")) and "Traceback" not in output


SEEDS = {"synthesize": 1, "ingest": 0, "tiles": 1, "extractor": 1, "features": 0, "fid": 0, "report": 0}


@pytest.mark.parametrize("function", ["fsync", "replace"])
@pytest.mark.parametrize(("verb", "seed"), [("synthesize", 0), *SEEDS.items()])
@pytest.mark.slow
def test_full_disk_ends_with_status_2_and_preserves_earlier_output(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    seed: int,
    function: str,
) -> None:
    bench.configure(seed=seed)
    before = bench.content()
    make_failing(monkeypatch, function, errno.ENOSPC)
    capsys.readouterr()
    assert main(bench.commands[verb]) == 2
    output = capsys.readouterr().err
    assert "No space left on device" in output
    assert "free s" in output
    assert four_lines(output)
    assert bench.content() == before


FIXES = {errno.EROFS: "read-only", errno.EACCES: "permissions", errno.ENOTCONN: "check the path"}


@pytest.mark.parametrize(
    ("number", "level", "status", "shown", "hidden"),
    [
        *((n, "INFO", 2, (f"got:      {os.strerror(n)}", "expected:", fix), "Traceback") for n, fix in FIXES.items()),
        (errno.ENOSPC, "DEBUG", 2, ("Traceback", "fix:"), "interrupted"),
        (errno.EPIPE, "INFO", 141, (), "fix:"),  # a reader that has gone
    ],
)
def test_error_contains_a_fix_and_a_traceback_at_debug_level(
    bench, monkeypatch, capsys, number, level, status, shown, hidden
):
    make_failing(monkeypatch, "fsync", number)
    monkeypatch.setenv("DITHC_LOG_LEVEL", level)
    assert main(bench.commands["fid"]) == status
    output = capsys.readouterr().err
    assert all(text in output for text in shown)
    assert hidden not in output


def test_unwritable_output_is_reported_with_the_path(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    out = bench.root / "config.json" / "fid" / "manifest.json"
    assert main([*bench.commands["fid"][:-1], str(out)]) == 2
    output = capsys.readouterr().err
    assert f"dithc fid could not read or write {out.parent}" in output
    assert four_lines(output)


def test_fid_reports_the_copied_share_of_generated_images(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The train tiles, rotated, serve as generated images."""
    assert main(bench.commands["fid"]) == 0
    numbers = json.loads((bench.root / "fid" / "manifest.json").read_text())["summary"]
    real = json.loads((bench.root / "real" / "manifest.json").read_text())["summary"]
    assert numbers["memorized_fraction"] == 1.0
    assert numbers["memorized_n"] == [numbers["n_generated"], real["n"] - numbers["n_generated"]]
    assert numbers["memorized_fraction_val"] < 1.0
    assert re.search(r"copies +100 % \(of held-out tiles: ", capsys.readouterr().out)


def test_fid_rejects_tiles_not_matching_the_real_features(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "manifest.json"
    Manifest(stage="tiles", name="other", spec={"of": "another set"}).write(other)
    arguments = [str(other) if key.endswith("/tiles/manifest.json") else key for key in bench.commands["fid"]]
    assert main(arguments) == 2
    assert f"tiles {other} are not the tiles of the real features" in capsys.readouterr().err
