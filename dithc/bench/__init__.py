"""Benchmarks of operators, training steps, training runs and sampling, compared with the limits of this machine.

Purpose: a time alone means little on a shared machine. Variants are interleaved within one run, and the ceilings
(multiply-adds in registers, a copy) are measured in the same minute.

Contents: `step` (one training step; losses on a platform), `operators` (single operators, and the search for the
fastest blocking), `gemm_libraries` (third-party matrix products), `training` (strategies, scaling, dithc's components),
`automem` (memory tiers), `time_to_quality` and `sampling` (one image by one rank and by several). `summary`
formats any of their results.

Invariants: warm-up is untimed. Every number has a spread and its repeats. A result contains machine, versions and
settings. A variant that cannot run here is a result with a reason, not a failure.

Extending: add a variant of a step to `step/variants.VARIANTS`, an operator as a function of `operators/cases.py`, and
a measurement as a file like `training/scaling.py` that returns one JSON-ready dictionary.
"""

from dithc.bench.tables import summary

__all__ = ["automem", "operators", "step", "summary", "time_to_quality", "training"]
