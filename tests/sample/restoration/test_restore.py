"""Tests of a complete restoration: values of its files, resumption, ranks, hidden pixels, and rejected scenes."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio

import dithc
from dithc.cli import main
from dithc.config.schema.evaluations import HideConfig
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.data import Tiles
from dithc.data.products import Scenes
from dithc.data.scene import Mask
from dithc.engine.comm import Group
from dithc.engine.scheduler import deadline
from dithc.sample.restoration import RestorationJob, hiding, pipeline, restore
from dithc.sample.restoration.hiding import Hiding
from dithc.sample.restoration.outputs import folder_name
from dithc.sample.restoration.scenes import RestorableScenes, _check_origin
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.preflight import check_inputs
from tests.ranks import needs_launcher, run_on_ranks
from tests.sample.restoration.conftest import BANDS, SHAPES, SIZE, TRANSFORM, write_scene

PROGRAM = """
import pickle, sys
from dithc.cli.evaluation.restoration_scores import score
from dithc.engine.comm import init_distributed
from dithc.sample.restoration import restore
with open(sys.argv[1], "rb") as file:
    job = pickle.load(file)
with init_distributed(int(sys.argv[2])) as group:
    restore(job, group, score=score)
"""
Make = Callable[..., RestorationJob]


def read(job: RestorationJob, scene: int, name: str) -> np.ndarray:
    with rasterio.open(job.out.parent / f"scene-{scene}.tif/{name}.tif") as source:
        return source.read()


def digest(job: RestorationJob) -> str:
    return Manifest.read(job.out, stage="restore").digest


def test_files_have_observed_values_statistics_of_members_and_the_grid(make_job: Make) -> None:
    job = make_job(members=6)
    numbers = restore(job, Group())
    stored = dithc.open(job.scenes, image=0)
    flags, valid = read(job, 0, "flags"), stored.coords["mask"].values == 1
    assert (flags == np.where(valid, 1, 2)).all()
    members = np.stack([read(job, 0, f"member-{number:02d}") for number in range(6)])
    assert members.dtype == np.float32
    for image in (*members, *(read(job, 0, name) for name in ("mean", "q05", "q95"))):
        assert np.array_equal(image[flags == 1], stored.values[flags == 1])
    gap = members[:, flags == 2].astype(np.float64)
    assert np.median(gap.std(0)) > 0
    pairs = gap.reshape(3, 2, -1)
    deviation = np.sqrt(pairs.var(1).mean(0) + pairs.mean(1).var(0, ddof=1))
    np.testing.assert_allclose(read(job, 0, "mean")[flags == 2], gap.mean(0), rtol=1e-6)
    np.testing.assert_allclose(read(job, 0, "deviation")[flags == 2], deviation, rtol=1e-5)
    assert (read(job, 0, "deviation")[flags == 1] == 0).all()
    for name, share in (("q05", 0.05), ("q95", 0.95)):
        np.testing.assert_allclose(
            read(job, 0, name)[flags == 2], np.quantile(gap, share, axis=0, method="weibull"), rtol=1e-5
        )
    with rasterio.open(job.out.parent / "scene-0.tif/mean.tif") as source:
        assert (source.crs.to_epsg(), source.transform, source.descriptions) == (32650, TRANSFORM, tuple(BANDS))
        assert source.units == ("reflectance",) * 3
        assert source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
    with rasterio.open(job.out.parent / "scene-0.tif/flags.tif") as source:
        assert source.units == ("0: outside; 1: observed; 2: restored",) * 3
    assert numbers is not None
    assert numbers["observed"] + numbers["restored"] + numbers["outside"] == 3 * sum(h * w for h, w in SHAPES)
    assert [entry for entry in Manifest.read(job.out).files if "block-" in entry["path"]] == []


def test_pixels_far_from_all_data_are_outside(make_job: Make) -> None:
    job = make_job()
    restore(job, Group())
    outside = np.zeros(SHAPES[1], bool)
    outside[:8] = True  # 24 rows without data, 16 of them within a tile of data
    flags = read(job, 1, "flags")
    assert ((flags == 0) == outside).all()
    assert (np.isnan(read(job, 1, "mean")) == outside).all()


def test_restoration_opens_as_a_dataset(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    job, column = make_job(), RestorableScenes.column
    time = {"sensing_time": "2024-05-01T12:30:00+02:00"}
    monkeypatch.setattr(RestorableScenes, "column", lambda *given: time.get(given[1]) or column(*given))
    restore(job, Group())
    opened = pickle.loads(pickle.dumps(dithc.open(job.out.parent, image=0)))
    part = {"band": ["B04", "B02"], "y": slice(30, 10, -2), "x": slice(5, None)}
    chosen = opened.sel(band=part["band"]).isel(y=part["y"], x=part["x"])
    for name in ("mean", "q05", "flags"):
        expected = read(job, 0, name)[[2, 0], 30:10:-2, 5:]
        assert np.array_equal(chosen[name].values, expected, equal_nan=True)
    assert np.array_equal(opened["members"].isel(member=[2, 1]).values[1], read(job, 0, "member-01"))
    assert opened["members"].isel(member=0, x=3).shape == (3, 72)
    assert opened.attrs["units"] == "reflectance"
    assert opened["time"].values == np.datetime64("2024-05-01T10:30:00")
    with rasterio.open(job.out.parent / "scene-0.tif/mean.tif") as source:
        assert source.tags()["sensing_time"] == time["sensing_time"]
        assert (opened.attrs["crs"], tuple(opened.attrs["transform"])) == ("EPSG:32650", tuple(TRANSFORM)[:6])
        assert (float(opened.x[5]), float(opened.y[7])) == source.xy(7, 5)
    page = (Path(__file__).parents[3] / "docs/restoration.md").read_text()
    program = dedent(page.partition("`y` and `x`:\n\n")[2].partition("\n\n##")[0])
    scope: dict[str, Any] = {}
    exec(program.replace("results/restore-demo/restorations/gaps", str(job.out.parent)), scope)
    assert np.array_equal(np.isfinite(scope["red"]), read(job, 0, "flags")[2] == 2)
    assert (scope["width"].values[read(job, 0, "flags") == 1] == 0).all()
    for path, image, text in (
        (job.out, None, "image=0"),
        (job.out, 2, r"no image 2\n.*\n.*image=0 to image=1"),
        (job.out, "x", "'x'"),
        (job.out.parent.with_name("oud"), 0, "out"),
    ):
        with pytest.raises(UserError, match=text):
            dithc.open(path, image=image)  # type: ignore[arg-type]


def test_show_prints_the_summary_and_draws_the_first_scenes(
    make_job: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, png = make_job(members=6), tmp_path / "restored.png"
    restore(job, Group())
    assert main(["show", str(job.out.parent), "--png", str(png)]) == 0
    text = capsys.readouterr().out
    assert "manifest of stage restore: x" in text
    assert "  scenes: 2\n" in text
    with rasterio.open(png) as source:
        pixels = source.read()[:3]
    side, gap = SHAPES[1][1], 2  # the smaller scene, in six columns: observation, mean, three members, deviation
    assert pixels.shape == (3, 2 * side + gap, 6 * side + 5 * gap)
    observation, mean = pixels[:, :side, :side], pixels[:, :side, side + gap : 2 * side + gap]
    gaps = (read(job, 0, "flags") == 2).any(0)
    starts = [(row, column) for row in range(len(gaps) - side + 1) for column in range(gaps.shape[1] - side + 1)]
    center = [(length - side) // 2 for length in gaps.shape]

    def rank(start: tuple[int, int]) -> float:
        share = gaps[start[0] : start[0] + side, start[1] : start[1] + side].mean()
        return float(abs(share - 0.4) + 0.1 * np.hypot(*np.subtract(start, center)) / max(gaps.shape))

    rows, columns = (slice(first, first + side) for first in min(starts, key=rank))
    is_gap = gaps[rows, columns]
    assert (observation[:, is_gap] == 150).all()
    assert np.array_equal(observation[:, ~is_gap], mean[:, ~is_gap])
    expected = Tiles(job.tiles.parent).stretch.display(read(job, 0, "mean")[None])[0]
    assert np.array_equal(mean, expected[:, rows, columns])


def test_scenes_beyond_the_prior_cause_warnings(
    make_job: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One band is clipped, the second scene is clouded, and the solver stops above its limit."""
    job, mask = make_job(members=4), Scenes.mask_of
    clipped = np.array([True, False, False])[:, None, None]
    monkeypatch.setattr(RestorableScenes, "clipped", lambda self, *place: clipped & np.ones_like(self.truth(*place)))
    monkeypatch.setattr(
        Scenes, "mask_of", lambda self, scene: mask(self, scene) if scene == 0 else np.full(SHAPES[1], Mask.CLOUD)
    )
    members = pipeline.BlockSampler.members
    for error, warned in ((1.2, False), (1.7, True)):
        monkeypatch.setattr(
            pipeline.BlockSampler, "members", lambda *given, e=error: (members(*given)[0], np.full(len(given[-1]), e))
        )
        caplog.clear()
        restore(replace(job, out=job.out.parent / f"{error}/manifest.json"), Group())
        texts = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert any("33.3%" in text and "B02 100.0%)" in text for text in texts)
        assert any("fewer than 5% of the pixels of 1.tif are" in text for text in texts)
        assert any("1.7 times its tolerance in" in text and "noise" in text for text in texts) == warned


def test_interrupted_and_damaged_restorations_continue_to_equal_bits(
    make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, job = make_job("one"), make_job("two")
    restore(reference, Group())
    written: list[Path] = []
    write_part = pipeline.write_part

    def killed(path: Path, *given: object, **named: object) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        write_part(path, *given, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_part", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(job, Group())
    altered = bytearray(written[0].read_bytes())
    altered[200] ^= 1
    written[0].write_bytes(altered)
    again: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_part", lambda path, *a, **b: (again.append(path), write_part(path, *a, **b)))
        restore(job, Group())
    assert written[0] in again
    assert not set(written[1:]) & set(again)
    assert digest(job) == digest(reference)
    before = (job.out.parent / "scene-1.tif/mean.tif").stat().st_mtime_ns
    (job.out.parent / "scene-0.tif/mean.tif").write_bytes(b"damaged")
    job.out.unlink()
    restore(job, Group())
    assert digest(job) == digest(reference)
    assert (job.out.parent / "scene-1.tif/mean.tif").stat().st_mtime_ns == before


def test_added_removed_and_changed_scenes_leave_the_others_unchanged(
    make_job: Make, prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, config = tmp_path / "archive", json.loads((prior / "config.json").read_text())
    shutil.copytree(prior / "archive", archive)
    config["datasets"]["archive"]["source"]["path"] = str(archive)
    (tmp_path / "config.json").write_text(json.dumps(config))
    job = replace(make_job(), scenes=tmp_path / "scenes/manifest.json")
    line = ["ingest", "--config", tmp_path / "config.json", "--dataset", "archive", "--out", job.scenes]
    sampled, write_part = list[str](), pipeline.write_part
    monkeypatch.setattr(
        pipeline, "write_part", lambda path, *a, **b: (sampled.append(path.parent.name), write_part(path, *a, **b))
    )

    def files() -> dict[str, dict[str, tuple[bytes, int]]]:
        """Ingest and restore; return content and time of the files of each scene."""
        sampled.clear()
        assert main(list(map(str, line))) == 0
        assert restore(job, Group()) is not None
        folders = [path for path in job.out.parent.iterdir() if path.is_dir()]
        return {
            folder.name: {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
            for folder in folders
        }

    first = files()
    assert set(sampled) == set(first) == {"scene-0.tif", "scene-1.tif"}
    write_scene(archive / "0/ü b.tif", SHAPES[0], seed=9, gaps=[(slice(20, 44), slice(16, 40))])  # between the others
    added = files()
    (name,) = added.keys() - first
    assert set(sampled) == {name}
    assert re.fullmatch(r"scene-0_b\.tif-[0-9a-f]{12}", name)
    assert {folder: added[folder] for folder in first} == first
    ids = Scenes(job.scenes.parent).columns["scene_id"]
    assert [str(dithc.open(job.out, image=number)["scene_id"].values) for number in range(3)] == ids
    write_scene(archive / "1.tif", SHAPES[1], seed=10, gaps=[(slice(0, 24), slice(0, 24))])
    (archive / "0.tif").unlink()
    changed = files()
    assert set(sampled) == {"scene-1.tif"}
    assert set(changed) == {name, "scene-1.tif"}
    assert changed[name] == added[name]
    assert changed["scene-1.tif"]["mean.tif"] != added["scene-1.tif"]["mean.tif"]


def test_folder_names_are_safe_and_distinct() -> None:
    ids = ["a.tif", "a/b", "a_b", "a b", "é", "..", "x" * 300, "x" * 301, "2024/" + "y" * 300]
    names = [folder_name(scene_id) for scene_id in ids]
    assert names[0] == "scene-a.tif"
    assert len(set(names)) == len(ids)
    assert all(re.fullmatch(r"scene-[A-Za-z0-9._-]{1,120}", name) for name in names)


def test_conditions_and_identity_of_a_scene_do_not_depend_on_other_scenes(make_job: Make) -> None:
    scenes = scenes_of(make_job())
    columns, found = scenes._scenes.columns, []
    place = columns["transform"][1]
    for transform in (place, None):
        columns["transform"] = [None, transform]
        found.append((scenes.digest(0), scenes.conditions(0, row=1, column=1), scenes.digest(1)))
    assert found[0][0] == found[1][0]
    assert found[0][2] != found[1][2]
    np.testing.assert_equal(found[0][1], found[1][1])


def test_short_walltime_stops_between_parts(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [make_job(members=4, batch_size=size) for size in (128, 16)]  # parts of two members, and of one
    monkeypatch.setattr(deadline, "seconds_left", lambda: 1.0)
    runs = 0
    while restore(job := jobs[runs % 2], Group()) is None:
        assert not job.out.exists()
        runs += 1
        assert runs < 100
    assert runs > 4
    reference = make_job("other", members=4)
    monkeypatch.undo()
    restore(reference, Group())
    assert digest(job) == digest(reference)


def test_disk_must_hold_the_missing_parts_of_a_wave(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    job, disk, sizes = make_job(members=4), SimpleNamespace(free=0), list[int]()
    write_part = pipeline.write_part
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda folder: disk)
    monkeypatch.setattr(pipeline, "PARTS_PER_RANK", 1000)  # one wave
    monkeypatch.setattr(
        pipeline.BlockSampler,
        "members",
        lambda self, scene, block, numbers: (
            np.zeros((len(numbers), 3, *block.size), np.float32),
            np.zeros(len(numbers), np.float32),
        ),
    )
    monkeypatch.setattr(
        pipeline, "write_part", lambda path, values, **b: (sizes.append(values.nbytes), write_part(path, values, **b))
    )
    with pytest.raises(UserError, match="disk space"):
        restore(job, Group())
    disk.free = 1 << 40
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "seconds_left", lambda: 1.0)
        assert restore(job, Group()) is None
    first = sum(sizes)
    restore(make_job("reference", members=4), Group())
    disk.free = sum(sizes[1:]) - first - 1  # the finished part needs no further space
    with pytest.raises(UserError, match="disk space"):
        restore(job, Group())
    disk.free += 1
    assert restore(job, Group()) is not None


@pytest.mark.sampled("several ranks")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_two_ranks_write_the_bits_of_one_rank(make_job: Make, tmp_path: Path) -> None:
    hide = {"share": 0.3}  # the manifest lists the scores
    jobs = [make_job(name, coarse={"B03": 2}, hide=hide) for name in ("one", "two")]
    for ranks, job in enumerate(jobs, start=1):
        done = run_on_ranks(PROGRAM, ranks=ranks, given=job, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    assert digest(jobs[0]) == digest(jobs[1])


def scenes_of(job: RestorationJob) -> RestorableScenes:
    hiding = job.masks.parent if job.masks is not None else None
    info = Tiles(job.tiles.parent).info
    return RestorableScenes(job.scenes.parent, info, job.settings, training=job.training.parent, hiding=hiding)


def test_generated_shapes_hide_a_share_by_place(make_job: Make) -> None:
    scenes = scenes_of(make_job(hide={"share": 0.3}))
    whole = scenes._hidden(0, slice(0, 1500), slice(0, 1500))
    assert whole.mean() == pytest.approx(0.3, abs=0.03)
    assert np.array_equal(scenes._hidden(0, slice(700, 760), slice(33, 90)), whole[700:760, 33:90])
    assert (whole != scenes._hidden(1, slice(0, 1500), slice(0, 1500))).mean() > 0.2
    runs = np.diff(np.flatnonzero(np.diff(whole[100].astype(int)) != 0))
    assert 10 < runs.mean() < 100  # shapes, not noise


def test_gaps_of_another_dataset_hide_pixels(make_job: Make) -> None:
    """Each hidden window is a mirrored crop of a scene's gaps, which continues by reflection beyond the scene."""
    job = make_job(masks=True, hide={"dataset": "archive", "dataset_share": [0.1, 0.7]})
    scenes = scenes_of(job)
    restore(job, Group())
    for scene in range(2):
        flags = read(job, scene, "flags")[0]
        shares = (flags != 1).mean()
        assert shares >= 0.1
        part = slice(3, 50), slice(-4, 20)
        complete = scenes._hidden(scene, slice(-8, 80), slice(-8, 80))
        assert np.array_equal(scenes._hidden(scene, *part), complete[11:58, 4:28])
    with pytest.raises(UserError, match="no matching crop"):
        scenes_of(make_job(masks=True, hide={"dataset": "archive", "dataset_share": [0.9, 0.95]}))._hidden(
            0, slice(0, 8), slice(0, 8)
        )


def test_dataset_without_gaps_is_rejected_before_training(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((prior / "config.json").read_text()) | {"results": str(prior.parent), "name": prior.name}
    out = tmp_path / "scenes/manifest.json"
    for dataset, share, is_rejected in (("train", 0.1, True), ("train", 0.0, False), ("archive", 0.1, False)):
        content["restorations"]["x"]["hide"] = {"dataset": dataset, "dataset_share": [share, 0.9]}
        (tmp_path / "config.json").write_text(json.dumps(content))
        line = ["ingest", "--config", str(tmp_path / "config.json"), "--dataset", dataset, "--out"]
        assert main([*line, str(out.parent.with_name(f"{dataset}-{share}") / out.name)]) == 2 * is_rejected
        assert ("`hide.dataset` of restorations.x\n" in capsys.readouterr().err) == is_rejected
        graph = ExperimentGraph(content)
        check_inputs(graph, {"ingest", "restore"})  # ingestion checks its scenes
        with pytest.raises(UserError, match="scenes of train have neither") if is_rejected else nullcontext():
            check_inputs(graph, {"restore"})


def test_gaps_that_match_no_tile_of_the_regression_are_rejected_before_sampling(
    make_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Hiding._draw

    def drawn(self: Hiding, number: int, shape: tuple[int, int]) -> tuple[int, int, int]:
        if shape == (SIZE, SIZE):
            self._settings = self._settings.model_copy(update={"dataset_share": [2.0, 2.0]})
        return draw(self, number, shape)

    monkeypatch.setattr(Hiding, "_draw", drawn)
    monkeypatch.setattr(pipeline.BlockSampler, "members", None)
    hide = {"dataset": "archive", "dataset_share": [0.1, 0.7], "regression_minutes": 1}
    with pytest.raises(UserError, match=rf"no matching crop\n.*of {SIZE} x {SIZE} pixels"):
        restore(make_job(masks=True, hide=hide), Group())


@pytest.mark.parametrize("side", [64, 250])
def test_real_clouds_hide_their_share_of_chips_and_of_larger_images(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ.get("DITHC_TEST_DATA", Path(__file__).parents[4] / "shared/data"))
    if not folder.is_dir():
        pytest.skip(f"real data is absent: {folder} (set DITHC_TEST_DATA)")
    clouds = np.load(folder / "eo_timeseries/CLM.npy").reshape(68, 101, 100) != 0
    stored = SimpleNamespace(count=68, mask_of=lambda number: np.where(clouds[number], Mask.CLOUD, Mask.VALID))
    monkeypatch.setattr(hiding.products, "Scenes", lambda _: stored)
    settings = HideConfig(dataset="clouds", dataset_share=[0.2, 0.6])
    drawn = Hiding(settings, seed=3, masks=Path("masks"))
    everywhere = (side, side), slice(0, side), slice(0, side)
    found = np.stack([drawn.window(number, *everywhere) for number in range(40)])
    shares = found.mean((1, 2))
    assert shares.min() >= 0.2 - 0.01
    assert shares.max() <= 0.6 + 0.01
    assert len(np.unique(found, axis=0)) > 35
    for number, image in enumerate(found[:10] if side == 64 else []):  # a mirrored crop
        scene, *starts = drawn._crop(number, (side, side))
        steps = [1 if start < length else -1 for start, length in zip(starts, clouds.shape[1:], strict=True)]
        top, left = (start % length for start, length in zip(starts, clouds.shape[1:], strict=True))
        crop = clouds[scene, :: steps[0], :: steps[1]][top : top + side, left : left + side]
        assert np.array_equal(image, crop)
    again = Hiding(settings, seed=3, masks=Path("masks"))
    assert np.array_equal(again.window(7, (side, side), slice(9, 33), slice(0, 12)), found[7, 9:33, :12])
    assert (Hiding(settings, seed=4, masks=Path("masks")).window(7, *everywhere) != found[7]).any()


def test_other_dates_are_scenes_on_the_same_grid_by_distance_in_time(make_job: Make) -> None:
    scenes = scenes_of(make_job())
    times = ["2024-05-01T10:00:00", "2024-01-01", "2024-06-01T10:00:00Z", "unknown", "2024-05-02"]
    grid = {"crs": ["EPSG:32650"] * 5, "transform": [(10.0, 0.0, 0.0)] * 4 + [(10.0, 0.0, 5.0)]}
    scenes._scenes.columns |= {**grid, "height": [8] * 5, "width": [8] * 5, "sensing_time": times}
    assert scenes.other_dates(0) == [2, 1]
    assert scenes.other_dates(3) == scenes.other_dates(4) == []


def test_scenes_unlike_the_training_scenes_are_rejected(make_job: Make, caplog: pytest.LogCaptureFixture) -> None:
    info = Tiles(make_job().tiles.parent).info

    def scenes(
        level: str | None, *, units: str = "reflectance", baseline: str = "05.00", gsd: float = 10.0
    ) -> SimpleNamespace:
        columns = {"scene_id": ["S"], "level": [level], "baseline": [baseline]}
        return SimpleNamespace(folder="f", index={"units": units, "gsd_m": gsd, "bands": BANDS}, columns=columns)

    _check_origin(scenes("L1C", baseline="04.00", gsd=20.0), scenes("L1C"), info)
    assert "baseline 04.00" in caplog.text
    assert "20 m" in caplog.text
    assert "unknown" not in caplog.text
    _check_origin(scenes(None), scenes(None), info)
    assert "level of scenes in f or f unknown" in caplog.text
    with pytest.raises(UserError, match=r"level of scene S\n.*L2A\n.*L1C"):
        _check_origin(scenes("L2A"), scenes("L1C"), info)
    with pytest.raises(UserError, match="units"):
        _check_origin(scenes("L1C", units="dn"), scenes("L1C"), info)
    lacking = Tiles(make_job().tiles.parent).info | {"bands": [*BANDS, "B08"]}
    job = make_job()
    with pytest.raises(UserError, match="also B08"):
        RestorableScenes(job.scenes.parent, lacking, job.settings, training=job.training.parent)


def test_blocks_that_are_not_coarse_pixels_are_rejected(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"`coarse` has B03: 2, and scene .*\n.* 0% of the blocks of 2 x 2"):
        restore(make_job(coarse={"B03": 2}), Group())
    pixels = np.random.default_rng(0).integers(1, 9000, (3, 20, 20)).repeat(4, 1).repeat(4, 2)
    for factor, shift in ((4, 0), (2, 0), (3, 0), (4, 1)):
        scenes = scenes_of(make_job(coarse={"B03": factor}))
        monkeypatch.setattr(scenes._scenes, "pixels_of", lambda scene, shift=shift: pixels[:, shift:, shift:])
        monkeypatch.setattr(scenes, "shape", lambda scene: SHAPES[0])
        monkeypatch.setattr(scenes._scenes, "mask_of", lambda scene: np.full(SHAPES[0], Mask.VALID))
        if (factor, shift) in ((4, 0), (2, 0)):
            scenes.check_coarse()
        else:
            with pytest.raises(UserError, match="has other pixels"):
                scenes.check_coarse()


def test_restores_a_coarse_band_whose_scene_has_it_withheld(make_job: Make) -> None:
    job = make_job(members=4, coarse={"B03": 4}, hide={"share": 0.3})
    restore(job, Group())
    flags, mean = read(job, 0, "flags"), read(job, 0, "mean")
    assert (flags[1] == 2).all()
    assert 0.1 < (flags[0] == 2).mean() < 0.7
    assert np.isfinite(mean).all()
    assert np.ptp(mean[flags == 2]) > 0


def test_command_scores_hidden_pixels(make_job: Make, prior: Path) -> None:
    job = make_job(members=4, coarse={"B03": 2}, hide={"share": 0.3, "regression_minutes": 0.005})
    config = json.loads((prior / "config.json").read_text())
    config["restorations"]["x"] = job.settings.model_dump(mode="json", exclude_defaults=True)
    path = job.out.parent.with_suffix(".json")
    path.write_text(json.dumps(config))
    line = ["restore", "--config", path, "--restoration", "x", "--checkpoint", job.checkpoint, "--tiles", job.tiles]
    line += ["--training", job.training, "--scenes", job.scenes, "--out", job.out]
    assert main([*map(str, line), "--masks", str(job.scenes)]) == 2
    assert main(list(map(str, line))) == 0
    errors: dict[str, list[np.ndarray]] = {"gaps": [], "coarse x2": []}
    for scene in range(2):
        truth = dithc.open(job.scenes, image=scene)
        is_compared = (read(job, scene, "flags") == 2) & (truth.coords["mask"].values == 1)
        error = read(job, scene, "mean").astype(np.float64) - truth.values
        for group, bands in (("gaps", [0, 2]), ("coarse x2", [1])):
            errors[group].append(error[bands][is_compared[bands]])
    scores = json.loads((job.out.parent / "scores.json").read_text())
    assert scores == Manifest.read(job.out).summary["scores"]
    assert scores["observed"]["restored"]["rmse"] == 0
    methods = {
        "gaps": ["nearest neighbor", "band mean", "conditional mean", "regression"],
        "coarse x2": ["nearest neighbor", "bilinear", "bicubic", "conditional mean", "regression"],
    }
    for group, parts in errors.items():
        found, error = scores[group], np.concatenate(parts)
        assert set(found) == {"restored", "member", "ensemble", *methods[group]}
        assert {one["pixels"] for one in found.values()} == {len(error)}
        assert found["restored"]["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
        assert 0 < found["ensemble"]["coverage"] < 1
        assert found["restored"]["spectrum_db"] > 0
    spread = (
        250 / np.sqrt(3) / 10_000
    )  # of independent uniform pixels; a coarse pixel removes a quarter of the variance
    assert scores["gaps"]["band mean"]["rmse"] == pytest.approx(spread, rel=0.1)
    assert scores["gaps"]["conditional mean"]["rmse"] == pytest.approx(spread, rel=0.1)
    assert 0.75 < (scores["coarse x2"]["conditional mean"]["rmse"] / spread) ** 2 < 0.95
    assert scores["coarse x2"]["conditional mean"]["consistency"] < 1
    assert scores["coarse x2"]["nearest neighbor"]["consistency"] < 1e-2
    assert scores["coarse x2"]["member"]["seam_ratio"] == pytest.approx(1, abs=0.1)
    (network,) = job.out.parent.glob("regression-*.pt")
    written = network.stat().st_mtime_ns
    job.out.unlink()
    assert main(list(map(str, line))) == 0
    assert network.stat().st_mtime_ns == written, "a trained network is kept"
    assert json.loads((job.out.parent / "scores.json").read_text()) == scores
