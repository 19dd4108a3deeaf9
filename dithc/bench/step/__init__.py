"""Training steps in one process: interleaved timing of several variants, and losses on several platforms.

`bench_step` measures a step of each variant (`variants.VARIANTS`) and the machine's ceilings. `loss_curves` trains on one
platform (`loss_curves.PLATFORMS`) from the same weights, images and noise everywhere. All variants train one model
alternately. An unavailable variant or platform is a result with its reason.
"""

from dithc.bench.step import loss_curves, variants
from dithc.bench.step.measure import StepSettings, bench_step

__all__ = ["StepSettings", "bench_step", "loss_curves", "variants"]
