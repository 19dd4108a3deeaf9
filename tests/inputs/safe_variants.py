"""Sentinel-2 products of other levels and baselines, made from synthetic products of level 2A."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dithc.data import synthesize
from dithc.data.raster import Driver, read_raster, write_geotiff
from dithc.data.synthetic.safe import PROCESSING, SafeProduct, stamp, write_manifest


class Variant(NamedTuple):
    """Level, processing baseline, and whether names follow the format before December 2016, with several granules."""

    level: str
    baseline: str
    long_names: bool = False


VARIANTS = {
    "l2a": Variant("L2A", "04.00"),
    "l2a-5": Variant("L2A", "05.11"),
    "l2a-2": Variant("L2A", "02.14"),
    "l1c": Variant("L1C", "05.11"),
    "l1c-2": Variant("L1C", "02.09"),
    "l1c-granules": Variant("L1C", "02.02", long_names=True),
}
LEVEL1C_GSD_M = {
    **dict.fromkeys(("B02", "B03", "B04", "B08"), 10),
    **dict.fromkeys(("B05", "B06", "B07", "B8A", "B11", "B12"), 20),
    **dict.fromkeys(("B01", "B09", "B10"), 60),
}
QA60_OPAQUE, QA60_CIRRUS = 1 << 10, 1 << 11


def write_variant(folder: Path, name: str, *, seed: int) -> None:
    """Write one product of 96 pixels at 10 m; without a raster mask of clouds, QA60 is in `NAME_mask.tif`."""
    variant = VARIANTS[name]
    products = [SafeProduct(index=i, size=96) for i in range(2 if variant.long_names else 1)]
    synthesize("sentinel2", folder, seed=seed, scenes=len(products), size=96)
    first = products[0]
    stamp_text, number = first.sensed + PROCESSING, variant.baseline.replace(".", "")
    root = folder / first.name.replace("N0400", f"N{number}").replace("L2A", variant.level)
    metadata = root / f"MTD_MSI{variant.level}.xml"
    if variant.long_names:
        passed = f"{stamp(stamp_text)}_R075_V{stamp(first.sensed)}_{stamp(first.sensed)}"
        root = folder / f"S2A_OPER_PRD_MSIL1C_DTHC_{passed}.SAFE"
        metadata = root / f"S2A_OPER_MTD_SAFL1C_DTHC_{passed}.xml"
    (folder / first.name).rename(root)
    for product in products[1:]:
        shutil.move(folder / product.name / product.granule, root / product.granule)
        shutil.rmtree(folder / product.name)
    text = (root / "MTD_MSIL2A.xml").read_text().replace(first.name, root.name)
    if variant.baseline < "04":
        text = re.sub(r"<BOA_ADD_OFFSET_VALUES_LIST>.*</BOA_ADD_OFFSET_VALUES_LIST>", "", text)
        for path in root.rglob("IMG_DATA/*/*_B*.jp2"):
            _rewrite(path, path, lambda dn: np.where(dn == 0, 0, np.maximum(dn.astype(int) - 1000, 1)).astype(dn.dtype))
    if variant.level == "L1C":
        granules = [_level1c(root, product, stamp_text=stamp(stamp_text), variant=variant) for product in products]
        text = re.sub(r"<Granule .*?</Granule>", "".join(granules), text, flags=re.DOTALL)
        quantification = '<QUANTIFICATION_VALUE unit="none">10000</QUANTIFICATION_VALUE>'
        text = re.sub(r"<BOA_QUANTIFICATION_VALUE.*</BOA_QUANTIFICATION_VALUE>", quantification, text)
        text = text.replace("BOA_ADD_OFFSET_VALUES_LIST", "Radiometric_Offset_List").replace("BOA_ADD", "RADIO_ADD")
    (root / "MTD_MSIL2A.xml").unlink()
    metadata.write_text(_renamed(text, variant))
    write_manifest(root)


def _renamed(text: str, variant: Variant) -> str:
    level = variant.level[1:]
    text = text.replace("L2A", variant.level).replace("Level-2A", f"Level-{level}").replace("MSI2A", f"MSI{level}")
    return text.replace("04.00", variant.baseline)


def _level1c(root: Path, product: SafeProduct, *, stamp_text: str, variant: Variant) -> str:
    """Turn a granule into one of level 1C; return its element of the product's metadata."""
    old, place = root / product.granule, f"T{product.tile}"
    stem, metadata = f"{place}_{stamp(product.sensed)}", "MTD_TL"
    granule = Path(product.granule).name.replace("L2A", "L1C")
    if variant.long_names:
        stem = f"S2A_OPER_MSI_L1C_TL_DTHC_{stamp_text}_A{product.absolute_orbit:06d}_{place}"
        granule, metadata = f"{stem}_N{variant.baseline}", stem.replace("_MSI_", "_MTD_")
    new = old.with_name(granule)
    text = _renamed((old / "MTD_TL.xml").read_text(), variant)
    images = new / "IMG_DATA"
    images.mkdir(parents=True)
    for band, gsd in LEVEL1C_GSD_M.items():
        source = root / f"{product.image('B09' if band == 'B10' else band, gsd)}.jp2"
        _rewrite(source, images / f"{stem}_{band}.jp2", (lambda dn: dn // 10 + 1) if band == "B10" else None)
    fine, coarse = (root / product.quality(f"MSK_CLDPRB_{gsd}m.jp2") for gsd in (20, 60))
    (new / "QI_DATA").mkdir()
    masks = ""
    if variant.baseline >= "04":
        mask = new / "QI_DATA" / "MSK_CLASSI_B00.jp2"
        _rewrite(coarse, mask, lambda p: np.concatenate([p > 25, (p > 5) & (p <= 25), p > 100]).astype(np.uint8))
        masks = f'<MASK_FILENAME type="MSK_CLASSI">{mask.relative_to(root).as_posix()}</MASK_FILENAME>'
    else:
        name = granule if variant.long_names else root.stem
        _rewrite(fine, root.parent / f"{name}_mask.tif", _qa60, finer=2)
    (new / f"{metadata}.xml").write_text(re.sub(r"<MASK_FILENAME.*</MASK_FILENAME>", masks, text))
    shutil.rmtree(old)
    files = "".join(
        f"<IMAGE_FILE>GRANULE/{granule}/IMG_DATA/{stem}_{band}</IMAGE_FILE>" for band in sorted(LEVEL1C_GSD_M)
    )
    return f'<Granule granuleIdentifier="{granule}" imageFormat="JPEG2000">{files}</Granule>'


def _qa60(percent: Any) -> Any:
    flags = np.where(percent > 25, QA60_OPAQUE, np.where(percent > 5, QA60_CIRRUS, 0)).astype(np.uint16)
    return flags.repeat(2, axis=1).repeat(2, axis=2)


def _rewrite(source: Path, path: Path, change: Callable[[Any], Any] | None, *, finer: int = 1) -> None:
    """Write the pixels of `source`, changed, to `path`; `finer`: pixels of the new image along one of the old one."""
    pixels, info = read_raster(source)
    assert info.transform is not None
    assert info.crs is not None
    a, b, c, d, e, f = info.transform
    driver: Driver = "JP2OpenJPEG" if path.suffix == ".jp2" else "GTiff"
    transform, epsg = (a / finer, b, c, d, e / finer, f), int(info.crs.rpartition(":")[2])
    write_geotiff(path, change(pixels) if change else pixels, transform=transform, epsg=epsg, driver=driver)
