"""What `hcops.patch` gives on models that are not ours: a whole training step, plain, compiled and patched, in turns.

What: `bench_patch` measures, `patch_table` makes it readable; `own` holds models with the structure of those of others,
`foreign` makes those of timm, diffusers and transformers where they are installed.
Invariants: every contender trains its own copy of one model with torch's AdamW in its default form; a model or a contender that
cannot run here is a row with its reason. The patched copy's gradients are compared with float64, beside those of plain torch.
How to change it: a model is a function in `own` or `foreign` and its line in `MODELS` of `measure`.
"""

from dithc.bench.patched.measure import PatchSettings, bench_patch
from dithc.bench.patched.table import patch_table

__all__ = ["PatchSettings", "bench_patch", "patch_table"]
