"""Sentinel-2 pixels without their product: GeoTIFF or .npy files, checked for contradictions to their declaration."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dithc.config import datasets
from dithc.data.file_checks import combined_sha256
from dithc.data.readers.listing import RASTERS, Listing, SidecarIndex, scene_id
from dithc.data.readers.rasters import read_pixels
from dithc.data.readers.sentinel2.clouds import SceneMasks
from dithc.data.readers.tags import check_tags
from dithc.data.scene import REFLECTANCE_SCALE, Array, Mask, Reason, Scene, SceneRejectedError, stored_reflectance

SATURATED = 65535
CIRRUS_BAND = "B10"
VISIBLE_BANDS = {"B02", "B03", "B04"}
CIRRUS_MOST = 0.05
"""Largest median reflectance of the cirrus band: a few 1e-3 from water vapor, without ground. The offset alone is 0.1.
"""
FLOOR_LEAST, FLOOR_MOST = 0.09, 0.2
"""With the offset included, the darkest valid pixel is above 0.1 less noise in all bands, just above in some."""
DARKEST, DARKEST_SHARE = -0.02, 0.1
"""Lowest median of a band, and the largest share of pixels below it. Atmospheric correction makes some dark pixels
slightly negative, but less. Of 480 real L2A chips without an offset, 455 are below the median with offset -1000, and 23
of the other 25 exceed the share. Without that offset, all 480 pass.
"""
IMPOSSIBLE_REFLECTANCE = 10.0


class Sentinel2ArrayReader:
    """Reader of files with declared bands, units, offset and layout."""

    def __init__(self, source: datasets.Sentinel2ArraySource, folder: Path) -> None:
        self.source, self.folder, self.classes = source, folder, ["sentinel2"]
        self._sidecars = SidecarIndex()
        self.listing, self._masks = Listing(source, folder), SceneMasks(source.clouds)
        self.paths = self.listing.files(
            suffixes=RASTERS,
            expected=f"GeoTIFF or .npy files with {len(source.bands)} bands",
            fix="put the files there or correct `source.path`; for .SAFE products use `kind: sentinel2`",
        )

    def inputs(self, path: Path) -> list[Path]:
        return [*self._sidecars(path), *self._masks.find(path)]

    def read(self, path: Path) -> Scene:
        source = self.source
        raw = read_pixels(path, bands=source.bands, layout=source.axis_order, gsd_m=source.gsd_m)
        check_type(raw.pixels, units=source.units)
        saturated = SATURATED if source.units == "dn" else None
        invalid = raw.invalid(raw.nodata, saturated, declared=source.nodata)  # (C, H, W)
        invalid |= (raw.pixels == 0).all(axis=0)
        offset = source.offset or 0.0 if source.units == "dn" else 0.0
        offsets = [offset] * len(source.bands)
        per_unit = source.quantification if source.units == "dn" else 1.0
        check_tags(
            path,
            raw.labels,
            bands=source.bands,
            default_colors=raw.pixels.dtype == np.uint8,
            units="reflectance",
            scale=1 / per_unit,
            offset=offset / per_unit,
        )
        if not invalid.all():
            if source.units == "reflectance":
                check_range(raw.pixels, invalid)
            elif source.check_offset:
                check_offset(raw.pixels, invalid, bands=source.bands, offset=offset, per_unit=per_unit)
        stored = stored_reflectance(
            raw.pixels, offset=offset, per_unit=per_unit, invalid=invalid, quantity="a value of the file"
        )
        mask = np.where(invalid.any(axis=0), Mask.INVALID, Mask.VALID).astype(np.uint8)
        masked = self._masks.mark(path, raw.place, mask)
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=combined_sha256({file.name: file for file in (path, *masked, *raw.companions)}),
            pixels=stored,
            mask=mask,
            bands=source.bands,
            place=raw.place,
            units="reflectance",
            scale=REFLECTANCE_SCALE,
            properties={"dtype": str(raw.pixels.dtype), "offset_source": "config", "offsets": offsets},
            notes=raw.notes,
        )


def check_type(pixels: Array, *, units: str) -> None:
    """Raise SceneRejectedError for reflectance in an integer type, or digital numbers in 8 bits or with fractions."""
    kind, fix = pixels.dtype.kind, "correct `units`, or save the file again"
    expected = (
        f"{'integers of 16 bits or more, or integral floats,' if units == 'dn' else 'floats'} for `units: {units}`"
    )
    got = f"{pixels.dtype}"
    if units == "reflectance":
        is_valid = kind == "f"
        fix = "set `units: dn` and declare `offset`" if kind in "iu" else fix
    elif kind in "iu":
        is_valid = pixels.dtype.itemsize > 1
        fix = "8-bit files are stretched images; use the digital numbers" if not is_valid else fix
    else:
        finite = pixels[np.isfinite(pixels)] if kind == "f" else pixels[:0]
        is_valid = kind == "f" and bool((finite == np.rint(finite)).all())
        if kind == "f" and not is_valid:
            got += f" with fractions, values {finite.min():.4g} to {finite.max():.4g}"
            fix = "set `units: reflectance` if 1.0 is full reflectance"
    if not is_valid:
        title = "the type of the pixels contradicts the declared units"
        raise SceneRejectedError(Reason.WRONG_DTYPE, title, got=got, expected=expected, fix=fix)


def check_range(pixels: Array, invalid: Array) -> None:
    highest = pixels.max(where=~invalid, initial=0)
    if highest > IMPOSSIBLE_REFLECTANCE:
        raise SceneRejectedError(
            Reason.UNITS_CONTRADICTION,
            "the values contradict `units: reflectance`",
            got=f"values up to {highest:.6g}",
            expected="reflectance, 0 to about 1.5",
            fix="set `units: dn` and declare `offset`, or divide the file by its quantification value",
        )


def check_offset(
    pixels: Iterable[Array], invalid: Iterable[Array], *, bands: list[str], offset: float, per_unit: float
) -> None:
    """Raise SceneRejectedError, with the values, if the declared offset contradicts them.

    The offset of processing baseline 04.00 is -1000 DN (-0.1 in reflectance). Unless it is applied, no band is darker
    than about 0.1, and the entire cirrus band has values. If it is applied twice, entire bands are negative. `pixels`
    (C, H, W) are stored numbers or an iterable of bands, as is `invalid`, which must not be all true; `per_unit` are
    stored units per reflectance 1.
    """
    lowest, medians, dark = {}, {}, {}
    for band, values, excluded in zip(bands, pixels, invalid, strict=True):
        valid = values[~excluded]
        if valid.size:
            lowest[band], medians[band] = float(valid.min()), float(np.median(valid))
            dark[band] = float((valid < DARKEST * per_unit - offset).mean())
    darkest, negative = (min(medians, key=lambda band: medians[band]), max(dark, key=lambda band: dark[band]))
    reflectance, floor = (medians[darkest] + offset) / per_unit, min(lowest.values())
    if reflectance < DARKEST or dark[negative] > DARKEST_SHARE:
        median = f"median of {darkest} {medians[darkest]:g}, which would be reflectance {reflectance:.3f}"
        got = median if reflectance < DARKEST else f"{dark[negative]:.0%} of {negative} below reflectance {DARKEST:g}"
        reset = "the offset was already applied: set `offset: 0`"
        fix = reset if offset else "these are not reflectances: check `quantification`, and declare the `nodata` value"
    elif offset == 0 and medians.get(CIRRUS_BAND, 0.0) / per_unit > CIRRUS_MOST:
        got = f"median of {CIRRUS_BAND} {medians[CIRRUS_BAND]:g}, compared with a few tens in clear air"
        fix = "the offset is still included: set `offset: -1000`"
    elif offset == 0 and VISIBLE_BANDS & lowest.keys() and FLOOR_LEAST <= floor / per_unit < FLOOR_MOST:
        got = f"no valid value below {floor:g} in any of {len(lowest)} bands"
        fix = "the offset is still included: set `offset: -1000`"
    else:
        return
    raise SceneRejectedError(
        Reason.OFFSET_CONTRADICTION,
        f"the values contradict the declared `offset: {offset:g}`",
        got=got,
        expected="values of the declared processing baseline: `offset: -1000` from 04.00, 0 before or if it is applied",
        fix=f"{fix}; keep files of the two types in separate datasets; "
        "for a scene that really has these values, set `check_offset: false`",
    )
