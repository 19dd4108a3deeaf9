"""Benchmarks in the report: their summaries and conditions are shown; a file of another benchmark is an error."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.core.logging import UserError
from dithc.core.measurements import Measurement, Table
from dithc.report import write_report
from dithc.report.documents import read_bench


@pytest.mark.parametrize("kind", ["step", "strategies"])
def test_page_shows_the_summary_of_a_benchmark(tree_class: Any, tmp_path: Path, kind: str) -> None:
    summary = Measurement(
        title="a title",
        tables=[Table(title="a table", head=["Variant", "s"], rows=[["cftp", "0.64 ± 0.02"]])],
        notes=["a <note>"],
        conditions={"memory limit": "RLIMIT_DATA of 5 bytes"},
    )
    tree, out, path = tree_class(tmp_path), tmp_path / "report.html", tmp_path / "bench.json"
    path.write_text(json.dumps({"bench": kind, "cells": [3], **summary.to_content()}))
    write_report(tree.experiment, [], out=out, benches={kind: path})
    text = out.read_text()
    for phrase in ("a title.", "a table", "0.64 ± 0.02", "a &lt;note&gt;", "RLIMIT_DATA of 5 bytes"):
        assert phrase in text
    assert ("Table 2: one node" in text) == (kind == "strategies")
    assert json.loads(out.with_suffix(".json").read_text())["benches"][kind]["cells"] == [3]


OTHER_BENCHMARK = r"is not a result of `dithc bench strategies`(?s:.*)leave out --strategies"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(("{", "cannot be read"), ("[1]", "cannot be read"), ("{}", OTHER_BENCHMARK)),
        *(('{"bench": "step", "summary": {}}', OTHER_BENCHMARK), ('{"bench": "strategies"}', OTHER_BENCHMARK)),
    ],
)
def test_file_without_the_expected_benchmark_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"bench\.json {message}"):
        read_bench(path, "strategies")
