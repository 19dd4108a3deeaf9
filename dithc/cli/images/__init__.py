"""Verbs that make images from a checkpoint and measure them: samples, features, distances.

What: `sample`, `search_sampler`, `extractor`, `features`, `fid`; `image_sets` opens the images that features are of.
Why: what was generated and what is real go the same way to a score.
Invariants: a verb's module is loaded when the verb is called, and this door loads none.
How to change it: a new verb is a module here, a line in `VERBS` of `dithc.cli` and a word in its `ROOMS`.
"""

__all__ = []
