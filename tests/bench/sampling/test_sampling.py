"""Sampling of one image by several ranks and by one rank. Tests compare outputs bitwise and do not check times."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dithc.bench import summary
from dithc.bench.sampling.comparison import compare, compare_and_time
from dithc.bench.sampling.diffusers_pipeline import DiffusersRunner, skip_reason
from dithc.bench.sampling.measure import add_peaks
from dithc.bench.sampling.runners import DithcRunner, SamplingCase, config_of, network
from dithc.bench.sampling.variants import VARIANTS, named
from dithc.bench.sampling.workers import Outcome
from dithc.cli import main
from dithc.core.logging import UserError
from dithc.sample.parallel import SamplingGroup
from tests.ranks import needs_kernels, needs_launcher

TINY = {"hidden_size": 64, "depth": 2, "num_heads": 4}
CELL = SamplingCase(model="DiT-S/2", overrides=TINY, tokens=16, dtype="fp32", guidance=4.0, steps=3)
EXACT = ("all-cores", "side-by-side", "cfg", "shared-kv", "ulysses")


@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
@needs_kernels
def test_two_ranks_match_the_single_rank_image_exactly_except_ring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sampling.json"
    arguments = [
        "--rounds",
        "1",
        "--min-round-seconds",
        "0",
        "--steps",
        "8",
        "--cpus-per-rank",
        "1",
        "--dtypes",
        "fp32",
        "--tokens",
        "16",
    ]
    arguments += ["--decode-size", "64", "--decode-width", "8"]
    arguments += [f"--override={name}={value}" for name, value in TINY.items()]
    assert main(["bench", "sampling", *arguments, "--json", str(path)]) == 0
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["ranks"] == {"ranks": 2, "cpus": 1}
    guided, alone = ({row["name"]: row for row in cell["rows"]} for cell in result["cells"])
    images = {row["name"]: row for row in result["images"]["rows"]}
    for rows in (guided, alone, images):
        ok = [row for row in rows.values() if row["status"] == "ok"]
        assert all(row["equal"] and row["difference"] == 0 for row in ok if row["name"] in EXACT)
        assert not rows["ring"]["equal"]
        assert 0 < rows["ring"]["difference"] < 1e-5
        assert all(row["seconds"]["median"] > 0 for row in ok)
    assert (alone["cfg"]["status"], alone["cfg"]["reason"]) == (
        "skipped",
        "without guidance the network has a single branch",
    )
    assert guided["ulysses"]["sent"]["mpi_bytes"] != 0
    cuts = {"one-rank", "cfg", "shared-kv", "ulysses", "ring"}
    assert set(guided) == set(alone) == {*cuts, "all-cores", "side-by-side"}
    assert cuts <= set(images)
    output = capsys.readouterr().out
    decoders_are_right(result["decoding"])
    assert "another image, " in output
    assert "DIFFERS from one rank" not in output
    assert "equal to the bit" in output
    assert "without guidance" in output
    assert not path.with_suffix(".partial.jsonl").exists()


def decoders_are_right(found: dict[str, Any]) -> None:
    """Check that decoding by rows equals one rank, and that tiles decoded separately (the control) do not."""
    assert [one["decoder"] for one in found["decoders"]] == ["sd-vae", "kl-vae"]
    for one in found["decoders"]:
        assert one["status"] == "ok", one
        rows = {row["name"]: row for row in one["rows"]}
        assert list(rows) == ["one-rank", "all-cores", "by-rows", "apart"]
        assert all(row["seconds"]["median"] > 0 for row in rows.values())
        assert all(
            rows[name]["within_tolerance"] and rows[name]["difference"] < 1e-5 for name in ("all-cores", "by-rows")
        )
        assert rows["by-rows"]["sent"]["mpi_bytes"] != 0
        assert not rows["apart"]["within_tolerance"]
        assert rows["apart"]["difference"] > 1e-2
        for name, ranks in (("one-rank", 1), ("by-rows", 2), ("apart", 2)):
            peaks = rows[name]["peak_bytes"]
            assert peaks is None or (len(peaks) == ranks and max(peaks) > 0)
        assert rows["all-cores"]["peak_bytes"] is None


def test_unsupported_variants_report_a_skip_reason() -> None:
    cell = replace(CELL, tokens=4)
    config = config_of(cell)
    faults = {one.name: one.skip_reason(cell, config, ranks=3) for one in VARIANTS}
    assert faults["ulysses"] == "4 heads are not a multiple of 3"
    assert faults["cfg"] == "cfg 2 do not multiply to 3 ranks"
    assert faults["shared-kv"] is faults["one-rank"] is None
    assert "5 ranks for 4 tokens" in str(named(["ring"])[0].skip_reason(cell, config, ranks=5))


def test_peaks_are_compared_with_one_rank() -> None:
    one: dict[str, Any] = {"rows": [{"name": "one-rank"}, {"name": "by-rows"}, {"name": "all-cores"}]}
    add_peaks(one, {"one-rank": [100], "by-rows": [40, 50]})
    assert [row["peak_over_one_rank"] for row in one["rows"]] == [1.0, 0.5, None]


def test_outputs_are_compared_on_every_rank_and_zero_or_nan_is_rejected() -> None:
    base = np.array([1.0, -2.0], np.float32)
    assert compare([base, base.copy()], base) == {"equal": True, "difference": 0.0}
    assert compare([base, base + np.array([0, 1], np.float32)], base) == {"equal": False, "difference": 0.5}
    for nothing in (np.zeros(2, np.float32), np.array([np.nan, 1], np.float32)):
        with pytest.raises(UserError, match="the output of one rank"):
            compare([nothing], nothing)


def test_variants_are_warmed_up_compared_and_timed_in_alternating_order() -> None:
    orders: list[tuple[str, int]] = []

    class Played:
        def request(self, role: str, order: str, name: str, loops: int) -> list[Outcome]:
            orders.append((name, loops))
            sent = dict.fromkeys(("tcp_bytes", "mpi_bytes", "shared_bytes"), 1)
            seconds = {"one-rank": (0.25,), "side-by-side": (0.5, 0.75)}[name]
            return [Outcome(one, np.ones((1, 4, 2, 2), np.float32), sent) for one in seconds]

    able = named(["one-rank", "side-by-side"])
    timings, comparisons = compare_and_time(Played(), able, rounds=2, warmup=1, seconds=1.0, ranks=2)  # type: ignore[arg-type]
    one, both = ("one-rank", 4), ("side-by-side", 1)
    assert orders == [("one-rank", 1)] * 2 + [("side-by-side", 1)] * 2 + [one, both, both, one]
    assert timings["side-by-side"].seconds == (0.375, 0.375), "the slowest rank, for each of two images"
    assert comparisons["side-by-side"]["equal"]
    assert comparisons["side-by-side"]["sent"]["mpi_bytes"] == 2


@pytest.mark.slow
@pytest.mark.sampled("benches")
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_diffusers_image_matches_dithc_for_equal_weights(guidance: float) -> None:
    cell = replace(CELL, guidance=guidance)
    model = network(cell)
    if (reason := skip_reason(model, cell)) is not None:
        pytest.skip(reason)
    diffusers_runner, fused = DiffusersRunner(model, cell), DithcRunner(model, cell, SamplingGroup())
    for method in ("step", "image"):
        expected = getattr(fused, method)()
        assert ((getattr(diffusers_runner, method)() - expected).abs().max() / expected.abs().max()).item() < 1e-5
    for block in diffusers_runner._net.transformer_blocks:  # the control: frequencies of the class
        block.norm1.emb.time_proj.downscale_freq_shift = 1
    assert ((diffusers_runner.step() - fused.step()).abs().max() / fused.step().abs().max()).item() > 1e-3


def test_network_with_a_different_null_label_is_skipped_with_reason() -> None:
    cell = replace(CELL, overrides={**TINY, "num_classes": 10})
    assert skip_reason(network(cell), cell) == "DiTPipeline uses 1000 as the null label, and the network 10"


def test_table_lists_skipped_variants_and_differing_outputs() -> None:
    spread = {"median": 1.5, "mad": 0.1}
    row = {"name": "ring", "status": "ok", "seconds": spread, "equal": False, "difference": 2e-7}
    row |= {"sent": {"tcp_bytes": 0, "mpi_bytes": None, "shared_bytes": 0}}
    skipped = {"name": "cfg", "status": "skipped", "reason": "why"}
    cell = {"tokens": 16, "dtype": "fp32", "guidance": 1.0, "rows": [row, skipped]}
    decoded = row | {"name": "by-rows", "within_tolerance": False, "difference": 0.02, "peak_bytes": [3 << 20, 2 << 20]}
    decoder = {"decoder": "sd-vae", "size": 64, "width": 8}
    decoders = [
        decoder | {"status": "ok", "rows": [decoded]},
        decoder | {"status": "skipped", "reason": "no diffusers"},
    ]
    result = {
        "bench": "sampling",
        "settings": {"model": "DiT-S/2", "rounds": 3},
        "ranks": {"ranks": 2, "cpus": 1},
        "variants": [],
        "cells": [cell],
        "images": None,
        "decoding": {"variants": [], "decoders": decoders},
    }
    output = summary(result).text()
    assert "within 2.0e-07 of the largest number" in output
    assert "sd-vae: no diffusers" in output
    assert re.search(r"^by-rows +DIFFERS from one rank: 2\.0e-02 .* 3 +-$", output, re.MULTILINE), "peak, and its ratio"
    assert re.search(r"^cfg +why +-", output, re.MULTILINE)
