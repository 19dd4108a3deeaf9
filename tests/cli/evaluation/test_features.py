"""Features, triplets and pixels by the commands: equal on one and two ranks, and scored by an evaluation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dithc.cli import main
from dithc.core.artifacts import Manifest, digest
from dithc.core.integrity import load_checksummed
from dithc.data import Tiles
from dithc.sample.shards import ImageShards
from tests.cli.small_experiment import SmallExperiment
from tests.ranks import ROOT, launch_arguments, needs_launcher

METRICS = ["precision-recall", "bands", "indices", "spectra"]


class FeatureExperiment(SmallExperiment):
    """Experiment with tiles, an extractor, images that are darkened tiles, and the features of both."""

    def __init__(self, root: Path) -> None:
        settings = {"num_images": 70, "metrics": METRICS, "band_triplets": [["B", "G", "R"]]}
        super().__init__(root, scenes=40, low=100, high=140, **settings)
        self.run(*self.commands)
        self._sample(Tiles(root / "tiles"))
        self.commands |= {side: self.arguments_of(side, side) for side in ("real", "generated")}
        self.run("real", "generated")

    def arguments_of(self, side: str, out: str) -> list[str]:
        """Return the arguments of `dithc features` for real tiles or generated images."""
        images = {"real": ("--tiles", self.manifest("tiles")), "generated": ("--samples", self.manifest("samples"))}
        return self.features(*images[side], "--pixel-statistics", "--band-triplet", "B+G+R", out=out)

    def _sample(self, tiles: Tiles) -> None:
        rows = tiles.rows("all")[:70]
        images = np.clip(tiles.scaled(rows) * 0.7 - 0.25, -2, 2)
        shards = ImageShards(folder=self.root / "samples", total=len(rows), identity="i")
        shards.folder.mkdir()
        for shard in range(shards.count):
            part = images[list(shards.indices(shard))]
            labels = tiles.labels[rows[list(shards.indices(shard))]].tolist()
            shards.write(
                shard, images=part, rgb=tiles.stretch.display(tiles.stretch.unscale(part)), labels=labels, seconds=1.0
            )
        Manifest(
            stage="sample",
            name="score",
            spec={},
            files=Manifest.entries(shards.folder, sorted(shards.folder.iterdir())),
            summary={"images": 70, "rendering_digest": digest(tiles.info["display"]), "seed": 0},
            inputs={self.manifest("tiles"): Manifest.read(self.root / "tiles" / "manifest.json").digest},
        ).write(shards.folder / "manifest.json")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> FeatureExperiment:
    return FeatureExperiment(tmp_path_factory.mktemp("features"))


@pytest.mark.slow
def test_evaluation_reports_all_requested_metrics(
    experiment: FeatureExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--real", experiment.manifest("real"), "--generated", experiment.manifest("generated")]
    assert (
        main(experiment.line("fid", "--evaluation", "score", *pair, "--tiles", experiment.manifest("tiles"), out="fid"))
        == 0
    )
    manifest = Manifest.read(Path(experiment.manifest("fid")), stage="fid")
    numbers, output = manifest.summary, capsys.readouterr().out
    assert {entry["path"] for entry in manifest.files} == {"curves.json"}
    assert all(0 <= numbers[name] <= 1 for name in ("precision", "recall"))
    assert numbers["triplets"]["B+G+R"]["fid"] > 0
    assert numbers["pixels"]["indices"]["absent"][0].startswith("NDVI: no band is near infrared")
    assert "NDVI: no band" in output
    tiles = Tiles(experiment.root / "tiles")
    real = tiles.stretch.physical(tiles.stored(tiles.rows("all")))
    generated = tiles.stretch.unscale(
        np.concatenate([np.load(path) for path in sorted((experiment.root / "samples").glob("shard-*.npy"))])
    )
    for side, values in (("real", real), ("generated", generated)):
        clipped = ((values < 100) | (values > 140)).any(axis=1).mean()
        assert numbers[f"clipped_{side}"] == pytest.approx(clipped, rel=1e-12)
        assert 0 < clipped < 1
    darker = numbers["pixels"]["bands"]["wasserstein"]
    apart = np.abs(real.mean(axis=(0, 2, 3)) - generated.mean(axis=(0, 2, 3)))
    # Means are never farther apart than the distributions.
    assert all(darker[band] > 0.9 * apart[number] > 0 for number, band in enumerate("RGB"))
    assert "power" not in json.dumps(numbers)
    curves = json.loads((experiment.root / "fid" / "curves.json").read_text())
    assert curves["band_names"] == ["R", "G", "B"]
    assert np.shape(curves["spectra"]["power"]["generated"]) == (3, 8)
    ids = [
        load_checksummed((experiment.root / name / "images.json").read_text())["images"]
        for name in ("real", "generated")
    ]
    assert ids == [tiles.accepted("tile_id")["tile_id"], [{"seed": 0, "image": number} for number in range(70)]]


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_reproduce_the_features_of_one_rank(experiment: FeatureExperiment) -> None:
    for side in ("real", "generated"):
        arguments = [sys.executable, "-m", "dithc", *experiment.arguments_of(side, f"{side}-2"), "--ranks", "2"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DITHC_EXPECTED_RANKS": "2"}
        done = subprocess.run([*launch_arguments(2), *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        one, two = experiment.root / side, experiment.root / f"{side}-2"
        names = sorted(str(path.relative_to(one)) for path in one.rglob("*.np?"))
        assert names == sorted(str(path.relative_to(two)) for path in two.rglob("*.np?"))
        assert {
            "pixels.npz",
            "thumbnails-00000.npy",
            "structure-00000.npy",
            "shard-00000.npy",
            "B+G+R/stats.npz",
        } <= set(names)
        first, second = (Manifest.read(folder / "manifest.json") for folder in (one, two))
        assert (first.summary["ranks"], second.summary["ranks"]) == (1, 2)
        for name in names:
            if name.endswith("npy"):
                np.testing.assert_allclose(np.load(one / name), np.load(two / name), rtol=1e-5, atol=1e-6)
        assert (one / "pixels.npz").read_bytes() == (two / "pixels.npz").read_bytes()
        assert first.summary["clipped_fraction"] == second.summary["clipped_fraction"]


@pytest.mark.slow
def test_outputs_no_longer_requested_are_removed(experiment: FeatureExperiment) -> None:
    arguments = experiment.arguments_of("generated", "less")
    assert main(arguments) == 0
    parts = [experiment.root / "less" / name for name in ("B+G+R", "pixels.npz")]
    assert all(part.exists() for part in parts)
    assert (
        main([argument for argument in arguments if argument not in ("--pixel-statistics", "--band-triplet", "B+G+R")])
        == 0
    )
    assert not any(part.exists() for part in parts)


@pytest.mark.slow
def test_triplet_with_unknown_bands_is_rejected(
    experiment: FeatureExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.replace("B+G+R", "B+G+NIR") for argument in experiment.arguments_of("real", "odd")]) == 2
    assert "three of R, G, B" in capsys.readouterr().err
