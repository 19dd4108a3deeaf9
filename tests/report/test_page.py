"""The page is self-contained, contains every number, and marks incomparable scores."""

import html
import json
import re
import struct
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from jinja2 import DictLoader

from dithc.core.artifacts import Manifest
from dithc.report import FIGURES, write_report
from dithc.report.formatting import between, score
from dithc.report.records import ReportRecords
from tests.report.texts import Page


@pytest.fixture(scope="module")
def page(out: Path) -> Page:
    return Page(out.read_text())


def test_page_loads_no_files_is_well_formed_and_links_have_targets(out: Path, page: Page) -> None:
    text = out.read_text()
    assert not re.search(r"https?://|url\(|@import|<link|javascript:", text)
    assert text.count("<script") == 1
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-" in html.unescape(text)
    assert all(value.startswith("data:image/webp;base64,") for value in page.values("src", "srcset"))
    assert page.open == []
    assert set(page.values("href")) <= {f"#{value}" for value in page.values("id")}


@pytest.mark.slow
def test_every_number_of_the_fid_manifests_appears(tree: Any, page: Page) -> None:
    manifests = [json.loads(path.read_text()) for path in tree.paths if path.parts[-3] == "fid"]
    assert len(manifests) == 6
    titles = page.values("title")
    for numbers in (manifest["summary"] for manifest in manifests):
        for key in ("fid", "kid", "floor"):
            assert score(numbers[key]) in page.text
            assert str(numbers[key]) in titles
        assert between(numbers["kid_interval"]) in page.text
        for text in (f"{numbers['n_real']:,}", f"{numbers['n_generated']:,}", numbers["extractor"], numbers["resize"]):
            assert text in page.text
        assert numbers["sha256"][:12] in page.text
        assert all(warning in page.text for warning in numbers["warnings"])
    assert page.text.count("copies 3.1%") == 2  # of the last run of each dataset
    assert page.text.count("held-out 1.7%") == 2


def test_incomparable_scores_are_flagged_everywhere(page: Page) -> None:
    assert "NOT COMPARABLE with published FID:" in page.text
    assert page.text.count("NOT COMPARABLE") >= 2 + 2 + 1  # in the assessment, above each table, once above all


def test_comparable_scores_are_not_flagged(tree_class: Any, tmp_path: Path) -> None:
    tree = tree_class(tmp_path)
    numbers = {
        **tree_class.score("final", "finetune-sentinel2"),
        "comparable_to_published": True,
        "note": "",
        "warnings": [],
    }
    tree.write("fid", "sentinel2-final", summary=numbers)
    write_report(tree.experiment, tree.paths, out=tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text())
    assert "NOT COMPARABLE" not in page.text
    assert "comparable with published FID; features of classifier.safetensors" in page.text


def with_scores(records: ReportRecords, **numbers: Any) -> ReportRecords:
    """Return the records with other numbers in every score."""
    evaluations = [
        replace(item, score=replace(item.score, **numbers) if item.score else None) for item in records.evaluations
    ]
    return replace(records, evaluations=evaluations)


def test_kid_is_the_main_measure_below_2000_images(tree: Any, page: Page) -> None:
    assert "Weights Sampler KID FID Floor of FID" in page.text
    records = tree.records()
    for n, measure in ((1999, "KID"), (2000, "FID")):
        assert with_scores(records, n_real=5000, n_generated=n).measure == measure
        assert with_scores(records, n_real=n, n_generated=5000).measure == measure
    assert with_scores(records, kid=None).measure == "FID"  # as for statistics alone


def test_codec_evaluation_is_not_a_sample(tree: Any) -> None:
    records = tree.records()
    final = next(item for item in records.evaluations if item.checkpoint == "final" and item.score)
    assert final.score is not None
    best = replace(final.score, fid=1.5, kid=-0.001, kid_interval=None)
    codec = replace(final, checkpoint="codec", label="the codec alone", score=best)
    changed = replace(records, evaluations=[codec, *records.evaluations])
    assert changed.best(final.dataset) == final
    assert changed.evaluations_of(final.dataset)[-1] == codec


def test_descriptions_of_solver_and_guidance(tree: Any) -> None:
    plain = replace(tree.records().evaluations[0], sampler="ddim")
    changes: dict[str, Any] = {
        "sampler": "unipc",
        "solver_order": 3,
        "steps": 2,
        "guidance_scale": 1.5,
        "network_evaluations": 3,
    }
    guidance = {"guidance_interval": [0.1, 0.75], "guidance_reference": 500}
    items = [replace(plain, **change) for change in ({}, changes, changes | guidance)]
    assert [item.solver for item in items] == [
        "ddim 50",
        "unipc 2, order 3",
        "unipc 2, order 3",
    ]
    assert [item.guided for item in items] == [
        "",
        "guidance 1.5, all; 3 evaluations",
        "guidance 1.5, all, away from step 500, from 0.1 to 0.75 of the timesteps; 3 evaluations",
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ("DiT-S/2", "33.0 M", "1.017", "0.9321", "0.1623", "0.2083", "0.7812", "40.96", "1.80 GiB", "step 130"),
        ("checksum mismatch", "less than 95 % valid", "across two splits", "train 1,100", "31.42 dB", "4 × 16 × 16"),
        ("eager", "1.234 ± 0.01", "medians of 5", "isa c"),  # of `dithc bench step`
    ],
    ids=["training", "data", "bench"],
)
def test_page_has_the_numbers_of_every_part(page: Page, texts: tuple[str, ...]) -> None:
    assert [text for text in texts if text not in page.text] == []


def test_origin_of_every_manifest_is_listed(tree: Any, page: Page) -> None:
    for path in tree.paths:
        assert json.loads(path.read_text())["digest"] in page.text
        assert str(path) in page.text


def test_external_names_are_escaped(tree_class: Any, tmp_path: Path) -> None:
    content = tree_class.configuration()
    content["title"] = "<script>alert(1)</script> & co"
    content["datasets"]["sentinel2"]["title"] = "<b onclick='x'>S2</b>"
    tree = tree_class(tmp_path, content)
    write_report(tree.experiment, tree.paths, out=tmp_path / "report.html", machine=["<img src=x>"])
    text = (tmp_path / "report.html").read_text()
    assert text.count("<script") == 1
    assert "<b onclick" not in text
    assert "<img src=x>" not in text
    assert "<script>alert(1)</script> & co" in Page(text).text


def test_figures_are_always_written_and_missing_results_are_listed(tree: Any, out: Path, tmp_path: Path) -> None:
    records: ReportRecords = write_report(tree.experiment, [], out=tmp_path / "report.html")
    for folder in (out.parent / "figures", tmp_path / "figures"):
        assert sorted(path.stem for path in folder.iterdir()) == sorted([*FIGURES, "composites"])
        for path in folder.iterdir():
            width, height = struct.unpack(">II", path.read_bytes()[16:24])
            assert width > 800
            assert height > 100
    page = Page((tmp_path / "report.html").read_text())
    assert "Not run: tiles of landscape, sentinel2, gaofen2; train of pretrain" in page.text
    assert "fid of sentinel2-untrained" in page.text
    assert page.text.count("not run") > 10
    assert page.open == []
    assert records.seconds == 0


def test_json_has_every_number_and_no_nan(tree: Any, out: Path) -> None:
    content = json.loads(out.with_suffix(".json").read_text(), parse_constant=pytest.fail)
    scores = {item["name"]: item["score"]["fid"] for item in content["evaluations"]}
    assert scores["sentinel2-final"] == 48.2619
    assert [item["parameters"] for item in content["runs"]] == [32963360] * 3
    assert len(content["origins"]) == len(tree.paths)
    assert content["seconds"] == pytest.approx(sum(Manifest.read(path).wall_seconds for path in tree.paths))
    assert 0 < len(content["runs"][0]["curve"]["loss_smoothed"]) <= 200
    measured = [(item["val_loss"], list(item["curve"]["val_loss"])) for item in content["runs"]]
    assert (0.2083, ["40", "80", "120", "160", "200"]) in [(value, steps[:5]) for value, steps in measured]
    assert (None, []) in measured


def test_texts_of_a_page_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    render = import_module("dithc.report.html.render")
    monkeypatch.setattr(render, "ChoiceLoader", lambda _: DictLoader({"page": "<b>{{ text }}{{ text|upper }}</b>"}))
    assert render.render_template("page", text="a\x1b[31m\u202e<") == r"<b>a\x1b[31m\u202e&lt;A\x1b[31M\u202e&lt;</b>"
