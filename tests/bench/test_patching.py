"""`bench patch`: each variant has a row, or the reason for its absence."""

import re

import pytest

from dithc.bench import patching, summary
from dithc.bench.patching import measure, reference_models


@pytest.mark.parametrize("dtype", ["fp32", "autocast", "bf16"])
def test_small_model_is_measured_and_absent_model_reports_reason(monkeypatch, tmp_path, dtype):
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path))

    def small():
        return reference_models.Decoder(width=16, depth=1, heads=2, groups=1, hidden=24, words=4096)

    def missing():
        raise ImportError("no such package")

    monkeypatch.setattr(
        measure, "MODELS", {"small": (small, measure._token_loss), "absent": (missing, measure._token_loss)}
    )
    settings = patching.PatchSettings(dtypes=(dtype,), compare=("eager",), batch=1, warmup=1, rounds=2, threads=1)
    result = patching.bench_patch(settings)
    row, absent = result["cases"]
    assert row["status"] == "ok"
    assert set(row["seconds"]) == {"eager", "patched"}
    assert row["gradients_off"]["patched"] < {"fp32": 1e-4, "autocast": 0.1, "bf16": 0.1}[dtype]
    assert {served["op"] for served in row["served"]} == {"linear", "rms_norm", "silu", "attention"}
    assert absent["status"] == "not here"
    text = summary(result).text()
    assert re.search(rf"^small +{dtype} .*\d+ of \d+$", text, re.MULTILINE)
    assert "no such package" in text
