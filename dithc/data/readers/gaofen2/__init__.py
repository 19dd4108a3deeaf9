"""Reader of Gaofen-2: orthorectified images, and level 1A products with calibration and orthorectification.

Contents: `reader` reads scenes, `level1a` level 1A products: `rpc` is the camera model, `orthorectify` resamples an image
onto the map, `pansharpen` merges bands, `calibration` applies the published coefficients of `calibration.json`.
Invariants: places and coefficients are computed in float64. No coefficient is guessed: a missing one is a UserError.
Extending: coefficients of another satellite are an entry of `calibration.json` with its source.
"""

from dithc.data.readers.gaofen2.reader import Gaofen2Reader

__all__ = ["Gaofen2Reader"]
