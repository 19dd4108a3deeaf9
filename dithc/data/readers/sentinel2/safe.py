"""Sentinel-2 products as delivered by ESA: `.SAFE` folders or zip files, L1C or L2A, all bands on one grid."""

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import datasets
from dithc.core.logging import UserError, get_logger, user_error
from dithc.data.file_checks import check_memory, combined_sha256
from dithc.data.parquet import Kind
from dithc.data.readers.listing import Listing, check_exists, files_below, scene_id
from dithc.data.readers.sentinel2.arrays import check_offset
from dithc.data.readers.sentinel2.clouds import SceneMasks, mark_clouds
from dithc.data.readers.sentinel2.safe_files import (
    CLOUD_PROBABILITY,
    LEVEL_BANDS,
    NATIVE_GSD_M,
    SCENE_CLASSIFICATION,
    BandFile,
    band_files,
    granules,
    packed_product,
    products,
)
from dithc.data.readers.sentinel2.safe_grid import common_grid, decode_bands, read_file, write_reflectance
from dithc.data.readers.sentinel2.safe_metadata import (
    Level,
    level_of,
    listed_files,
    metadata_file,
    read_metadata,
    sun_angles,
    verify_files,
)
from dithc.data.readers.sentinel2.stac_scaling import DnScaling
from dithc.data.readers.sentinel2.zip_products import SUFFIX, open_archive
from dithc.data.readers.tags import check_tags
from dithc.data.scene import (
    REFLECTANCE_SCALE,
    Georeference,
    Mask,
    PixelBuffer,
    Reason,
    Scene,
    SceneRejectedError,
)

log = get_logger(__name__)


class SceneBuilder:
    """Base of readers of Sentinel-2 scenes, which resamples bands to one grid in `canvas` while the next is decoded."""

    def __init__(self, source: datasets.Sentinel2Source | datasets.Sentinel2StacSource, folder: Path) -> None:
        self.source, self.folder, self.classes = source, folder, ["sentinel2"]
        self.columns: dict[str, Kind] = {"sun_elevation": "float", "sun_azimuth": "float"}
        self.canvas = PixelBuffer()
        self.listing, self._masks = Listing(source, folder), SceneMasks(source.clouds)
        finest = min((NATIVE_GSD_M[band] for band in source.bands or ()), default=0.0)
        if finest > source.gsd_m:
            raise user_error(
                "the grid is finer than every requested band (`source.bands`)",
                got=f"`gsd_m: {source.gsd_m:g}` for {', '.join(source.bands or ())}",
                expected=f"`gsd_m` of {finest:g} or more",
                fix=f"set `gsd_m: {finest:g}`, or add a finer band",
            )

    def _build_scene(
        self,
        path: Path,
        files: Mapping[str, BandFile],
        bands: list[str],
        scaling: DnScaling,
        *,
        level: Level,
        read: Mapping[str, Path],
        mask_source: tuple[Path, str],
        properties: Mapping[str, Any],
        notes: tuple[str, ...] = (),
    ) -> Scene:
        """Return a scene as int16 reflectance (C, H, W) on the grid of `gsd_m`.

        The hash is of the files `read`, and of the mask files of the scene `mask_source`, whose names get a prefix.
        """
        first = min((files[band] for band in bands), key=lambda file: file.gsd_m)
        first_band = read_file(first)
        grid = common_grid(first_band[1], gsd_m=self.source.gsd_m)
        num_bytes = 2 * len(bands) * grid.shape[0] * grid.shape[1]
        check_memory(path, num_bytes, description=f"{len(bands)} x {grid.shape} of int16")
        stored = self.canvas.blank((len(bands), *grid.shape), np.int16)  # (C, H, W)
        mask = np.full(grid.shape, Mask.VALID, dtype=np.uint8)  # (H, W)
        with closing(decode_bands([files[band] for band in bands], {first.band: first_band})) as natives:
            del first_band
            for (native, info), band, offset, out in zip(natives, bands, scaling.offsets, stored, strict=True):
                if isinstance(self.source, datasets.Sentinel2StacSource):
                    check_tags(
                        files[band].path,
                        info.labels,
                        bands=[band],
                        units="dn" if scaling.source == "config" else "reflectance",  # a declared offset replaces tags
                        scale=1 / scaling.per_unit,
                        offset=offset / scaling.per_unit,
                    )
                write_reflectance(
                    *(native, info, grid),
                    band=band,
                    how=self.source.resampling,
                    offset=offset,
                    per_unit=scaling.per_unit,
                    out=out,
                    mask=mask,
                )
                self.canvas.release()
        is_checked = isinstance(self.source, datasets.Sentinel2StacSource) and self.source.check_offset
        if is_checked and not (invalid := mask == Mask.INVALID).all():
            offset = min(scaling.offsets) / (scaling.per_unit * REFLECTANCE_SCALE)
            planes = (plane - np.int32(offset) for plane in stored)  # digital numbers as in the file, by band
            check_offset(planes, [invalid] * len(bands), bands=bands, offset=offset, per_unit=1 / REFLECTANCE_SCALE)
        place = Georeference(gsd_m=self.source.gsd_m, crs=grid.crs, epsg=grid.epsg, transform=grid.transform)
        mark_clouds(files, self.source.clouds, grid, mask)
        mask_files = self._masks.mark(mask_source[0], place, mask)
        if level == "L2A" and not {SCENE_CLASSIFICATION, CLOUD_PROBABILITY} & files.keys() and not mask_files:
            log.warning(f"{path.name} has no scene classification (SCL): its clouds are not masked")
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=combined_sha256({**read, **{f"{mask_source[1]}{file.name}": file for file in mask_files}}),
            pixels=stored,
            mask=mask,
            bands=bands,
            place=place,
            units="reflectance",
            scale=REFLECTANCE_SCALE,
            properties={**properties, "offsets": scaling.offsets},
            notes=notes,
        )


class SafeReader(SceneBuilder):
    """Reader of products from the file of each band, never with GDAL's SENTINEL2 driver."""

    source: datasets.Sentinel2Source
    memory_bytes = 11 * datasets.SENTINEL2_SIDE**2  # two decoded bands, one on the grid, the mask, and strips

    def __init__(self, source: datasets.Sentinel2Source, folder: Path) -> None:
        super().__init__(source, folder)
        files = "folders *.SAFE with MTD_MSIL1C.xml or MTD_MSIL2A.xml, or zip files of these folders"
        expected = f"Sentinel-2 products: {files}"
        check_exists(folder, expected=expected)
        self.paths = sorted(path for path in products(folder, self.listing.add_unread) if self.listing.selects(path))
        self._product_of: dict[Path, Path] = {}
        if not self.paths:
            fix = "unpack other archives than .zip; for loose band stacks (GeoTIFF, .npy) use `kind: sentinel2-array`"
            raise self.listing.nothing_found(folder, expected=expected, fix=fix)
        levels: dict[Path, Level] = {}
        for path in self.paths:
            with suppress(SceneRejectedError, UserError, OSError):  # an invalid product is rejected when it is read
                levels[path] = level_of(path)
        by_level = {level: [path for path, kind in levels.items() if kind == level] for level in LEVEL_BANDS}
        if all(by_level.values()):
            raise user_error(
                f"the products in {folder} are of two levels, which differ in bands and physics",
                got=", ".join(f"{len(paths)} {level} (such as {paths[0].name})" for level, paths in by_level.items()),
                expected="one level per dataset",
                fix="define a dataset for each level, with a separate folder",
            )
        for product in self.paths:
            if len(parts := granules(product)) > 1:
                self._product_of |= dict.fromkeys(parts, product)
        self.paths = sorted({*self.paths, *self._product_of} - {*self._product_of.values()})

    def inputs(self, path: Path) -> list[Path]:
        product = self._product_of.get(path, path)
        return [*(files_below(product) if product.is_dir() else [product]), *self._masks.find(self._scene_path(path))]

    def read(self, path: Path) -> Scene:
        """Read one product, a folder or a zip file, as int16 reflectance (C, H, W) on the grid of `gsd_m`."""
        if path in self._product_of:
            return self._read_product(path, self._product_of[path], path)
        if path.suffix.lower() != SUFFIX:
            return self._read_product(path, path, next(iter(granules(path)), None))
        with open_archive(path) as folder:
            product = packed_product(folder)
            if len(parts := granules(product)) > 1:
                raise SceneRejectedError(
                    Reason.WRONG_LAYOUT,
                    "the zip file contains several granules (format before December 2016), each of which is a scene",
                    got=f"{len(parts)} folders GRANULE/*/IMG_DATA",
                    expected="one granule per zip file",
                    fix="unpack it: in a folder each granule is read as a scene",
                )
            return self._read_product(path, product, next(iter(parts), None))

    def _read_product(self, path: Path, product: Path, granule: Path | None) -> Scene:
        files = band_files(product, granule, level_of(product), source=self.source)
        notes = self._verify(product, granule, [metadata_file(product), *(file.path for file in files.values())])
        metadata = read_metadata(product)
        bands: list[str] = [*(self.source.bands or LEVEL_BANDS[metadata.level])]
        offsets = [metadata.offsets[band] for band in bands]
        scaling = DnScaling(per_unit=metadata.quantification, offsets=offsets, source="xml")
        return self._build_scene(
            path,
            files,
            bands,
            scaling,
            level=metadata.level,
            read={file.path.relative_to(product).as_posix(): file.path for file in files.values()},
            mask_source=(self._scene_path(path), "../"),
            properties={**metadata.properties, **({} if notes else sun_angles(granule))},
            notes=notes,
        )

    def _scene_path(self, path: Path) -> Path:
        """Return the path of a product, or of a granule as if it were stored next to its product."""
        return self._product_of[path].with_name(path.name) if path in self._product_of else path

    def _verify(self, product: Path, granule: Path | None, used: list[Path]) -> tuple[str, ...]:
        """Compare the product, without other granules, with its manifest; note absent and damaged files."""
        if self.source.checksum == "skip":
            return ()
        listed = listed_files(product)
        if listed is None:
            log.warning(
                f"{product.name} has no manifest.safe: its files cannot be verified, only their hashes are kept"
            )
            return ()
        prefixes = tuple(f"GRANULE/{other.name}/" for other in granules(product) if other != granule)
        listed = {name: entry for name, entry in listed.items() if not name.startswith(prefixes)}
        absent, damaged = verify_files(product, listed, used=used, optional_files=self.source.optional_files)
        if damaged:
            rest = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            log.warning(
                f"{product.name} has damaged files that are not used: {damaged[0]}{rest} differs from manifest.safe"
            )
        return (*(["incomplete"] if absent else []), *(["damaged-unused-file"] if damaged else []))
