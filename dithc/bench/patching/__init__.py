"""Benchmark of `hcops.patch` on third-party models: a training step, plain, compiled and patched, interleaved.

Every variant trains a separate copy of one model with torch's default AdamW. An unavailable model or variant is a row
with its reason. Gradients of the patched copy and of plain torch are compared with float64. To add a model, add a
function to `reference_models` or `third_party_models` and a line to `measure.MODELS`.
"""

from dithc.bench.patching.measure import PatchSettings, bench_patch

__all__ = ["PatchSettings", "bench_patch"]
