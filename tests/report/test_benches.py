"""Benchmarks in the report: their summaries and conditions are shown; a file of another benchmark is an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.core.logging import UserError
from dithc.core.summaries import Measurement, Table
from dithc.report import write_report
from dithc.report.documents import read_bench


@pytest.mark.parametrize("kind", ["step", "strategies"])
def test_the_page_shows_the_summary_of_a_benchmark(plant: Any, tmp_path: Path, kind: str) -> None:
    summary = Measurement(
        title="a title",
        tables=[Table(title="a table", head=["Variant", "s"], rows=[["cftp", "0.64 ± 0.02"]])],
        notes=["a <note>"],
        conditions={"memory limit": "RLIMIT_DATA of 5 bytes"},
    )
    tree, out, path = plant(tmp_path), tmp_path / "report.html", tmp_path / "bench.json"
    path.write_text(json.dumps({"bench": kind, "cells": [3], **summary.to_content()}))
    write_report(tree.experiment, [], out=out, benches={kind: path})
    text = out.read_text()
    for words in ("a title.", "a table", "0.64 ± 0.02", "a &lt;note&gt;", "RLIMIT_DATA of 5 bytes"):
        assert words in text
    assert ("Table 2: one node" in text) == (kind == "strategies")
    assert json.loads(out.with_suffix(".json").read_text())["benches"][kind]["cells"] == [3]


@pytest.mark.parametrize("content", [{"bench": "step", "summary": {}}, {"bench": "strategies"}, {}])
def test_another_file_is_an_error(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"not a result of `dithc bench strategies`(?s:.*)leave out --strategies"):
        read_bench(path, "strategies")
