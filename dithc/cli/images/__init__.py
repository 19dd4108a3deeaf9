"""Commands that generate images from a checkpoint and evaluate them: samples, features, distances.

Purpose: generated and real images take the same path to a score.

Contents: `sample`, `search_sampler`, `extractor`, `features`, `fid`. `image_sets` opens the images for `features`.

Invariants: a command's module is imported when the command is called. This package imports none of them.

Extending: add a module here, a line in `VERBS` of `dithc.cli` and a name in its `ROOMS`.
"""

__all__ = []
