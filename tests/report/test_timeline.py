"""The picture of a step in two tiers shows what a plan holds, and stands in the report beside what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.cli import main
from dithc.log import UserError
from dithc.report import write_report
from dithc.report.engine.automem_table import automem_parts, read_automem
from dithc.report.engine.timelines import read_timeline, timeline_of
from dithc.report.figures.timeline import draw_timeline

GIB = 1 << 30


def phase(kind: str, *, stall: float = 0.0, loaded: int = 0, offloaded: int = 0, saved: int = 0) -> dict[str, Any]:
    return {
        "name": "block", "kind": kind, "seconds": 1.0, "stall_seconds": stall, "fast_bytes": GIB + saved, "slow_bytes": GIB,
        "fast_parts": {"weights": GIB, "saved": saved}, "slow_parts": {"state": GIB},
        "load_bytes": loaded, "offload_bytes": offloaded,
    }  # fmt: skip


def document(*, moving: bool = True) -> dict[str, Any]:
    moved = GIB // 4 if moving else 0
    phases = [
        phase("forward", offloaded=moved, saved=GIB // 2),
        phase("backward", stall=0.5 if moving else 0.0, loaded=moved, saved=GIB // 2),
        phase("update"),
    ]
    levels = {
        name: {"name": name, "budget_bytes": budget, "copy_bytes_per_second": 1e9}
        for name, budget in (("fast", 2 * GIB), ("slow", None))
    }
    plan = {
        "schema": 1, "units": {}, "state": {}, "phases": phases, "fits": True, "reasons": ["a reason"], "in_place_bytes": 0,
        **levels,
    }  # fmt: skip
    tiers = [
        {"name": "fast", "kind": "ddr", "budget_bytes": 2 * GIB},
        {"name": "slow", "kind": "ddr", "budget_bytes": None},
    ]
    return {"tiers": tiers, "trace": {"units": []}, "plan": plan}


def bench() -> dict[str, Any]:
    spread = {"median": 2.0, "mad": 0.1, "rounds": [2.0], "all": [2.0]}
    memory = document() | {"steps": {}}
    memory["tiers"][0]["peak_backed_bytes"] = int(1.75 * GIB)
    managed = {
        "name": "AutoMem", "status": "ok", "seconds": spread, "peak_rss_bytes": 3 * GIB, "peak_fast_bytes": 2 * GIB,
        "budget_bytes": 2 * GIB, "within_budget": True, "stall_share": spread | {"median": 0.05}, "slower": spread,
        "per_step": {"loaded_bytes": GIB, "offloaded_bytes": GIB}, "losses_identical": True, "memory": memory,
    }  # fmt: skip
    rows = [{"name": "unmanaged", "status": "oom", "reason": "killed"}, managed]
    probes = [{"batch": 8, "status": "ok", "seconds": 1.0}, {"batch": 9, "status": "oom", "seconds": None}]
    large = [{"name": name, "status": "ok", "largest": 8, "probes": probes} for name in ("plain torch", "AutoMem")]
    step = {
        "name": "pool",
        "model": "DiT-S/2",
        "seconds": spread,
        "over_first": spread,
        "page_faults": 7.0,
        "losses_identical": True,
    }
    return {
        "bench": "automem",
        "settings": {
            "model": "DiT-XL/2", "batch": 8, "dtype": "fp32", "budget": 0.4, "limit": 0.6, "rounds": 2, "steps": 3, "repeats": 9,
        },
        "counted": {"stall_share": "waits"},
        "parts": {
            "budget": {"takes_bytes": 5 * GIB, "budget_bytes": 2 * GIB, "rows": rows},
            "file": {"limit_bytes": 3 * GIB, "how": "RLIMIT_DATA", "rows": rows},
            "largest-batch": {"limit_bytes": 24 * GIB, "how": "", "ratio": 2.25, "most": 64, "rows": large},
            "pool": {"rows": [step]},
            "resident": {"rows": [step]},
        },
    }  # fmt: skip


def test_a_turn_waits_first_then_computes_and_the_next_follows() -> None:
    found = timeline_of(document())
    assert found is not None
    assert [(turn.start, turn.end) for turn in found.turns] == [(0.0, 1.0), (1.0, 2.5), (2.5, 3.5)]
    assert (found.seconds, found.stall, found.budget_bytes) == (3.5, 0.5, 2 * GIB)
    assert timeline_of({"parts": {"pool": {"rows": [{}]}}}) is None


def test_the_plan_of_a_bench_brings_what_was_held_and_what_it_is_of() -> None:
    found = timeline_of(bench())
    assert found is not None
    assert found.measured_peak_bytes == int(1.75 * GIB)
    assert found.title == "DiT-XL/2, batch 8"


@pytest.mark.parametrize("moving", [True, False])
def test_it_is_drawn_with_and_without_copies(moving: bool) -> None:
    found = timeline_of(document(moving=moving), title="a step")
    assert found is not None
    assert draw_timeline(found)[:4] == b"\x89PNG"


def test_show_prints_and_draws_the_plan_of_a_training_and_of_a_bench(tmp_path: Path, capsys: Any) -> None:
    for name, content, words in (("automem.json", document(), "a reason"), ("bench.json", bench(), "never exceeded")):
        path, png = tmp_path / name, tmp_path / f"{name}.png"
        path.write_text(json.dumps(content | {"settings": content.get("settings", {}) | {"memory_gib": 24}}))
        assert main(["show", str(path), "--png", str(png)]) == 0
        assert words in capsys.readouterr().out
        assert png.read_bytes()[:4] == b"\x89PNG"


def test_a_file_without_a_plan_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "automem.json"
    path.write_text(json.dumps({"bench": "automem", "parts": {}}))
    with pytest.raises(UserError, match="no plan of memory"):
        read_timeline(path)
    path.write_text('{"bench": "step"}')
    with pytest.raises(UserError, match="no measurement of AutoMem"):
        read_automem(path)


def test_the_tables_say_what_it_takes_what_did_not_fit_and_what_it_gains() -> None:
    tables = automem_parts(bench())["tables"]
    titles = [one["title"] for one in tables]
    assert titles[0] == "XL/2, batch 8, fp32: a fast tier of 40% of the 5.00 GiB that it takes unmanaged"
    assert titles[2] == "XL/2, largest batch in 24.00 GiB: 2.25 times the images"
    unmanaged, managed = tables[0]["rows"]
    assert unmanaged[:2] == ["unmanaged", "out of memory"]
    assert managed[3:] == ["5.0%", "3.00 GiB", "2.00 GiB", "2.00 GiB", "2.00 GiB", "yes, bit for bit"]
    assert all(len(row) == len(one["head"]) for one in tables for row in one["rows"])
    assert tables[2]["rows"][0] == ["plain torch", "8", "8 fits, 9 does not"]


@pytest.mark.slow
def test_the_page_has_tables_and_picture_where_it_was_measured(plant: Any, tmp_path: Path) -> None:
    tree = plant(tmp_path)
    tree.codec(tree.dataset("sentinel2"))
    path, out = tmp_path / "automem.json", tmp_path / "report.html"
    path.write_text(json.dumps(bench()))
    write_report(tree.experiment, tree.paths, out=out, automem=path)
    text = out.read_text()
    for words in ("2.25 times the images", "yes, bit for bit", "out of memory"):
        assert words in text
    drawn = (tmp_path / "figures" / "memory.png").stat().st_size
    write_report(tree.experiment, tree.paths, out=out)
    assert (tmp_path / "figures" / "memory.png").stat().st_size < drawn / 2
