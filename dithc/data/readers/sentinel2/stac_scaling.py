"""Scale and offset of digital numbers in catalog files, from several places of an item that must agree.

Products of baseline 04.00 and later add 1000 to every digital number. Planetary Computer keeps the offset in the files
and provides only the baseline. The Copernicus Data Space and Earth Search's sentinel-2-c1-l2a keep it and declare it
in scale and offset of each band. Earth Search's sentinel-2-l2a has removed it from most files.
`earthsearch:boa_offset_applied` declares this, while the bands still list the offset (Element84/earth-search issues 9,
66 and 71, which also show that the flag is sometimes wrong).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dithc.data.readers.sentinel2.safe_metadata import OFFSET_BASELINE
from dithc.data.scene import Reason, SceneRejectedError
from dithc.data.stac import Asset, Item

PER_UNIT = 10_000.0
OFFSET = -1000.0
"""Offset in digital numbers, so far the same for all bands of all products from the baseline."""
TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class DnScaling:
    """Conversion of digital numbers to reflectance: (number + offset) / per_unit."""

    per_unit: float
    offsets: list[float]  # in the order of the bands
    source: str  # config, applied, item, baseline, or xml of a product


def find_scaling(item: Item, assets: Mapping[str, Asset], *, declared: float | None) -> DnScaling:
    """Return the meaning of the digital numbers of bands; a `declared` offset replaces the offsets of item and assets."""
    scales = {asset.scale for asset in assets.values() if asset.scale is not None}
    if len(scales) > 1:
        raise _contradiction("the bands have several scales", got=", ".join(map(str, sorted(scales))), expected="one")
    scale = next(iter(scales), 1 / PER_UNIT)
    count, per_unit = len(assets), 1 / scale
    per_unit = PER_UNIT if abs(per_unit - PER_UNIT) <= TOLERANCE * PER_UNIT else per_unit
    if declared is not None:
        return DnScaling(per_unit=per_unit, offsets=[declared] * count, source="config")
    baseline = None if item.baseline is None else float(item.baseline)
    has_offset = None if baseline is None else baseline >= OFFSET_BASELINE
    if item.offset_applied:
        if has_offset is False:
            raise _contradiction(
                "the item declares that an offset was applied, and its baseline has none",
                got=f"boa_offset_applied and baseline {item.baseline}",
                expected="baseline 04.00 or later",
            )
        return DnScaling(per_unit=per_unit, offsets=[0.0] * count, source="applied")
    band_offsets = {band: asset.offset * per_unit for band, asset in assets.items() if asset.offset is not None}
    if not band_offsets:
        if has_offset is None:
            raise _contradiction(
                "the item does not declare the meaning of its numbers",
                got="no offset of the bands and no processing baseline",
                expected="one of them",
            )
        return DnScaling(per_unit=per_unit, offsets=[OFFSET if has_offset else 0.0] * count, source="baseline")
    if len(band_offsets) < count:
        missing = ", ".join(band for band in assets if band not in band_offsets)
        raise _contradiction("some bands declare an offset and some do not", got=f"none for {missing}", expected="each")
    clash = {band: value for band, value in band_offsets.items() if has_offset not in (None, bool(round(value)))}
    if clash:
        raise _contradiction(
            "the offset of the bands contradicts the baseline",
            got=f"{', '.join(f'{band} {value:g}' for band, value in clash.items())} with baseline {item.baseline}",
            expected=f"{OFFSET:g} from baseline 04.00, 0 before, or `earthsearch:boa_offset_applied: true`",
        )
    offsets = [float(round(value)) if abs(value - round(value)) < 1e-3 else value for value in band_offsets.values()]
    return DnScaling(per_unit=per_unit, offsets=offsets, source="item")


def _contradiction(title: str, *, got: str, expected: str) -> SceneRejectedError:
    return SceneRejectedError(
        Reason.OFFSET_CONTRADICTION,
        title,
        got=got,
        expected=expected,
        fix="check dark water: values of 1000 and more include the offset, set `offset: -1000`; else `offset: 0`; "
        "use a separate dataset for these scenes",
    )
