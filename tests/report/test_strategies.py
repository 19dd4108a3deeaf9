"""The comparison of strategies stands in the report in the form of the paper's table, with the ratios of both side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.log import UserError
from dithc.report import write_report
from dithc.report.engine.published import read_reference
from dithc.report.engine.strategy_table import read_strategies, strategy_parts

REFERENCE = Path(__file__).parents[2] / "config" / "paper" / "reference.yaml"


def row(seconds: float, gigabytes: float, sent: float, **more: Any) -> dict[str, Any]:
    return {
        "status": "ok",
        "seconds": {"median": seconds, "mad": 0.01, "all": [seconds]},
        "peak_pss_bytes": gigabytes * 1e9,
        "tcp_bytes": sent * 2**20,
        "mpi_bytes": None,
    } | more


def over(time: float, memory: float) -> dict[str, Any]:
    return {"cftp_seconds_over": {"median": time, "mad": 0.02, "rounds": [time]}, "cftp_memory_over": memory}


RESULT = {
    "bench": "strategies",
    "settings": {"dtype": "fp32", "rounds": 2, "steps": 3},
    "clusters": "1 die(s), 2 cluster(s)",
    "memory_limit": {"bytes": 10, "asked": True, "how": {"dp": "RLIMIT_DATA of 5 bytes"}},
    "counted": {"tcp_bytes": "as the kernel says"},
    "contenders": [
        {"name": "cftp", "ranks": 1, "cpus": 2},
        {"name": "dp", "ranks": 2, "cpus": 1},
        {"name": "dp+tp", "ranks": 2, "cpus": 1},
    ],
    "cells": [
        {
            "model": "DiT-B/2",
            "batch": 8,
            "strategies": {
                "cftp": row(2.0, 4.0, 0.0),
                "dp": row(2.5, 6.25, 99.0, **over(0.8, 0.64)),
                "dp+tp": row(4.0, 5.0, 300.0, **over(0.5, 0.8)),
            },
        },
        {
            "model": "DiT-XL/2",
            "batch": 8,
            "strategies": {
                "cftp": row(9.0, 15.0, 0.0),
                "dp": {"status": "oom", "reason": "killed"},
                "dp+tp": {"status": "failed", "reason": "no"},
            },
        },
    ],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "strategies.json"
    path.write_text(json.dumps(RESULT))
    return path


def test_the_table_has_the_papers_order_and_dashes(file: Path) -> None:
    parts = strategy_parts(read_strategies(file), None)
    assert parts["head"][2:5] == ["DP+TP s", "DP s", "CFTP s"]
    small, large = parts["rows"]
    assert small[:5] == ["8", "B/2", "4 ± 0.01", "2.5 ± 0.01", "2 ± 0.01"]
    assert small[5:] == ["5", "6.25", "4"]
    assert large[2:5] == ["failed", "–", "9 ± 0.01"]


def test_ratios_stand_beside_those_of_the_paper(file: Path) -> None:
    parts = strategy_parts(read_strategies(file), read_reference(REFERENCE).tables["table2"])
    against = {line[2]: line for line in parts["ratios"]}
    assert against["DP"][3:] == [
        "0.8 ± 0.02",
        "0.61 (batch 112), 0.85 (batch 224)",
        "0.64",
        "0.80 (batch 112), 0.67 (batch 224)",
        "99",
        "0",
    ]
    assert len(parts["ratios"]) == 2  # none for what did not run


def test_the_page_shows_it_with_its_conditions(plant: Any, tmp_path: Path, file: Path) -> None:
    tree = plant(tmp_path)
    tree.codec(tree.dataset("sentinel2"))
    tree.run("pretrain")
    out = tmp_path / "report.html"
    write_report(tree.experiment, tree.paths, out=out, strategies=file, reference=REFERENCE)
    text = out.read_text()
    for words in ("CFTP against", "0.64", "RLIMIT_DATA of 5 bytes", "2 rank(s) of 1 thread(s)", "as the kernel says"):
        assert words in text
    assert json.loads(out.with_suffix(".json").read_text())["strategies"]["cells"][0]["model"] == "DiT-B/2"


def test_another_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"bench": "step", "contenders": []}))
    with pytest.raises(UserError, match="no comparison of strategies"):
        read_strategies(path)
