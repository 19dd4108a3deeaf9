"""Measurements: what operators and training steps cost next to what this machine can do; the search for what costs least.

What: `collectives`, and the rooms `step` (one training step; losses on a platform), `operators`
(each alone, and a search for the fastest blocking), `libraries` (products by others), `trainings` (strategies, scaling, what each
part adds), `automem` (what tiers of memory give), `quality` and `sampling` (one image by one rank and by several) measure;
`table` returns the text of any of their results, `summary` the tables of most.
Why: a time alone says nothing on a shared machine; the contenders take turns inside one run, and the ceilings
(multiply-adds in registers, a copy) are measured in the same minute.
Invariants: warm-up is not counted; every number comes with its spread and repeats; the result holds the machine, the
versions and the settings; a contender that cannot run here is a result with its reason, not a failure.
How to change it: another way to run a step is a line of `step/variants.CONTENDERS`; another operator is a function of
`operators/cases.py`; another measurement is a file like `collectives.py` that returns one JSON-ready dictionary.
"""

from dithc.bench.tables import summary, table

__all__ = ["automem", "collectives", "operators", "quality", "step", "summary", "table", "trainings"]
