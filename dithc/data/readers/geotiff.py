"""Rasters of any sensor described by the configuration, with one file per scene or per band."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dithc.config import datasets
from dithc.data.file_checks import combined_sha256
from dithc.data.parquet import Kind
from dithc.data.raster import RasterInfo, read_raster
from dithc.data.readers.listing import RASTERS, Listing, SidecarIndex, scene_id
from dithc.data.readers.rasters import DTYPES, RasterPixels, check_dtype, convert
from dithc.data.readers.sentinel2 import SceneMasks
from dithc.data.readers.tags import check_tags
from dithc.data.scene import (
    RADIANCE_SCALE,
    REFLECTANCE_SCALE,
    Array,
    Mask,
    Reason,
    Scene,
    SceneRejectedError,
    stored_physical,
)

SCALES = {"reflectance": REFLECTANCE_SCALE, "radiance": RADIANCE_SCALE}


class GeoTiffReader:
    """Reader of configured rasters: bands by name, units, scale and no-data value come from the configuration only."""

    def __init__(self, source: datasets.GeoTiffSource, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.classes: list[str] = [source.kind]
        self._sidecars = SidecarIndex()
        self.columns: dict[str, Kind] = {} if source.wavelengths_nm is None else {"wavelengths_nm": "floats"}
        first = None if source.suffixes is None else source.suffixes[0]
        self.listing, self._masks = Listing(source, folder), SceneMasks(source.clouds)
        self.paths = self.listing.files(
            suffixes=RASTERS - {".npy"} if first is None else {Path(first).suffix.lower()},
            masks=first is not None,
            accept=lambda path: first is None or path.name.lower().endswith(first.lower()),
            expected=f"GeoTIFF files of {len(source.bands)} bands" if first is None else f"GeoTIFF files *{first}",
            fix="put the files there, or correct `source.path` and `source.suffixes`",
        )

    def inputs(self, path: Path) -> list[Path]:
        """Return the files of all bands, the mask file of the scene and their companions."""
        stem = self._stem(path)
        return sorted({*self._sidecars(path, stem), *self._band_files(path), *self._masks.find(path, stem)})

    def read(self, path: Path) -> Scene:
        source = self.source
        paths = self._band_files(path)
        raw = self._read_bands(paths)
        nodata = raw.nodata if source.nodata is None else None
        invalid = np.logical_or.reduce(raw.invalid(nodata, declared=source.nodata))  # (H, W)
        mask = np.where(invalid, Mask.INVALID, Mask.VALID).astype(np.uint8)
        masks = self._masks.mark(path, raw.place, mask, self._stem(path))
        properties = {"sensor": source.sensor or None, "dtype": str(raw.pixels.dtype)}
        wavelengths = {} if source.wavelengths_nm is None else {"wavelengths_nm": source.wavelengths_nm}
        return Scene(
            scene_id=scene_id(path, self.folder),
            path=path,
            sha256=combined_sha256({file.name: file for file in (*paths, *masks, *raw.companions)}),
            pixels=self._convert(raw.pixels, invalid),
            mask=mask,
            bands=source.bands,
            place=raw.place,
            units=source.units,
            scale=SCALES.get(source.units, 1.0),
            properties={**properties, **wavelengths},
            notes=raw.notes,
        )

    def _stem(self, path: Path) -> str | None:
        """Return the common start of the names of a scene's band files; None if one file has all bands."""
        return None if self.source.suffixes is None else path.name[: -len(self.source.suffixes[0])]

    def _band_files(self, path: Path) -> list[Path]:
        """Return the files of a scene in the order of the bands; name endings match any case if no exact match exists."""
        suffixes = self.source.suffixes
        if suffixes is None:
            return [path]
        stem = path.name[: -len(suffixes[0])]
        names = sorted(end.name for end in path.parent.iterdir())
        files = {
            end: [name for name in names if name.startswith(stem) and name.lower() == f"{stem}{end}".lower()]
            for end in suffixes
        }
        groups = [[name for name in files[end] if name == f"{stem}{end}"] or files[end] for end in suffixes]
        if missing := [f"{stem}{end}" for end, matches in zip(suffixes, groups, strict=True) if not matches]:
            raise SceneRejectedError(
                Reason.MISSING_BAND,
                "a band of the scene is missing",
                got=f"no {', '.join(missing)}",
                expected=f"{len(suffixes)} files {stem}*",
                fix="download them too, or remove the scene from the folder",
            )
        if ambiguous := next((matches for matches in groups if len(matches) > 1 or path.name not in groups[0]), None):
            raise SceneRejectedError(
                Reason.WRONG_LAYOUT,
                "the files of the scene are ambiguous",
                got=", ".join(sorted({path.name, *ambiguous})),
                expected="one file per band, or one with exactly the name ending in `suffixes`",
                fix="remove the other files from the folder",
            )
        return [path.with_name(matches[0]) for matches in groups]

    def _read_bands(self, paths: list[Path]) -> RasterPixels:
        source = self.source
        bands = [[band] for band in source.bands] if len(paths) > 1 else [source.bands]
        read = [read_raster(path, bands=names) for path, names in zip(paths, bands, strict=True)]
        (pixels, infos) = zip(*read, strict=True)
        for path, info in zip(paths, infos, strict=True):
            _check_equal(path, info, infos[0])
        masks = [info.masked for info in infos if info.masked is not None]
        combined = replace(
            infos[0],
            labels=tuple(label for info in infos for label in info.labels),
            masked=np.any(masks, axis=0) if masks else None,
            pages=max(info.pages for info in infos),
            companions=tuple(file for info in infos for file in info.companions),
        )
        raw = convert(
            np.concatenate(pixels) if len(paths) > 1 else pixels[0],
            combined,
            bands=source.bands,
            gsd_m=source.gsd_m or 1.0,
            georeferenced=source.gsd_m is None,
        )
        check_tags(
            [path for path, info in zip(paths, infos, strict=True) for _ in info.labels],
            raw.labels,
            bands=source.bands,
            default_colors=raw.pixels.dtype == np.uint8,
            units=source.units,
            scale=source.scale,
            offset=source.offset,
            wavelengths_nm=source.wavelengths_nm,
        )
        return raw

    def _convert(self, pixels: Array, invalid: Array) -> Array:
        """Return pixels in the stored type of a dataset: unchanged, or physical values in steps."""
        source = self.source
        if source.units in DTYPES:
            check_dtype(pixels, units=source.units)
            return np.ascontiguousarray(pixels)
        if pixels.dtype.kind not in "iuf":
            raise SceneRejectedError(
                Reason.WRONG_DTYPE,
                "the pixels are not real numbers",
                got=str(pixels.dtype),
                expected="integers or floating-point numbers",
                fix="convert the raster, for example to its magnitude",
            )
        scales, offsets = (np.broadcast_to(value, len(pixels)).tolist() for value in (source.scale, source.offset))
        stored = np.empty(pixels.shape, dtype=np.int16)
        for band, target, scale, offset in zip(pixels, stored, scales, offsets, strict=True):
            values = band * np.float64(scale) + offset  # (H, W)
            target[:] = stored_physical(values, scale=SCALES[source.units], invalid=invalid, units=source.units)
        return stored


def _check_equal(path: Path, info: RasterInfo, first: RasterInfo) -> None:
    for name in ("count", "height", "width", "dtype", "crs", "transform", "nodata"):
        got, expected = getattr(info, name), getattr(first, name)
        if got != expected and not (got != got and expected != expected):  # both may be NaN
            raise SceneRejectedError(
                Reason.GRID_MISMATCH,
                "a band differs from the first band of the scene",
                got=f"{path.name}: {name} {got}",
                expected=f"{expected}",
                fix="resample the bands to one grid (gdalwarp -tr -te), or list only bands of one pixel size",
            )
