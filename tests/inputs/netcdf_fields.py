"""Generated NetCDF-4 files in the layout of the WCRP-CORDEX ML-Benchmark: predictors, targets and orography."""

from pathlib import Path

import numpy as np
import pyproj
import xarray as xr

LEVELS = (850, 700, 500)
LCC = {
    "grid_mapping_name": "lambert_conformal_conic",
    "standard_parallel": np.array([46.0]),
    "longitude_of_central_meridian": 10.0,
    "latitude_of_projection_origin": 46.0,
    "earth_radius": 6371229.0,
}
GRID_KM = 12.5


def smooth(rng: np.random.Generator, *shape: int, cells: float) -> np.ndarray:
    """Draw Gaussian fields (..., H, W) of deviation 1 with a correlation length of `cells`."""
    noise = np.fft.rfft2(rng.standard_normal(shape))
    radius = np.hypot(np.fft.fftfreq(shape[-2])[:, None], np.fft.rfftfreq(shape[-1]))
    fields = np.fft.irfft2(noise / (1 + (2 * np.pi * cells * radius) ** 2) ** 1.5, s=shape[-2:])
    return fields / fields.std(axis=(-2, -1), keepdims=True)


def write_cordex(folder: Path, *, days: int, seed: int, size: int = 128) -> Path:
    """Write `train/ESD_pseudo_reality` of a domain below `folder`, and return the file of targets.

    Predictors have 15 variables on 16 x 16 cells of 2 degrees. Targets are tasmax (K) and pr (mm) on `size` x `size`
    cells of a Lambert projection in km, with rows from south to north and two-dimensional latitudes and longitudes.
    """
    rng = np.random.default_rng(seed)
    train = folder / "train" / "ESD_pseudo_reality"
    for name in ("predictors", "target"):
        (train / name).mkdir(parents=True, exist_ok=True)
    time = np.datetime64("1961-01-01T12:00:00", "ns") + np.arange(days) * np.timedelta64(1, "D")
    season = 10 * np.sin(2 * np.pi * (np.arange(days) - 100) / 365.25)[:, None, None]
    coarse = ("time", "lat", "lon")
    predictors = {
        f"{name}_{level}": (coarse, (mean + spread * smooth(rng, days, 16, 16, cells=2)).astype(np.float32))
        for name, mean, spread in (("u", 5, 8), ("v", 0, 8), ("t", 270, 9), ("q", 4e-3, 1e-3), ("z", 3e4, 900))
        for level in LEVELS
    }
    degrees = {"lat": np.arange(16) * 2.0 + 31, "lon": np.arange(16) * 2.0 - 6}
    xr.Dataset(predictors, {"time": time, **degrees}).to_netcdf(
        train / "predictors" / "CNRM-CM5_1961-1980.nc", engine="h5netcdf"
    )
    orography = 800 * np.maximum(smooth(rng, size, size, cells=8), 0)
    km = (np.arange(size) - (size - 1) / 2) * GRID_KM
    to_degrees = pyproj.Transformer.from_crs(
        pyproj.CRS.from_cf({**LCC, "standard_parallel": 46.0}), 4326, always_xy=True
    )
    lon, lat = to_degrees.transform(*np.meshgrid(km * 1000, km * 1000))
    places = {
        "y": ("y", km, {"standard_name": "projection_y_coordinate", "units": "km"}),
        "x": ("x", km, {"standard_name": "projection_x_coordinate", "units": "km"}),
        "lat": (("y", "x"), lat, {"standard_name": "latitude", "units": "degrees_north"}),
        "lon": (("y", "x"), lon, {"standard_name": "longitude", "units": "degrees_east"}),
    }
    tasmax = 290 + season - 0.0065 * orography + 3 * smooth(rng, days, size, size, cells=size / 8)
    pr = 6 * np.maximum(smooth(rng, days, size, size, cells=size / 16) + orography / 2000 - 0.5, 0) ** 1.5
    attributes = {"grid_mapping": "crs", "coordinates": "lat lon"}
    fine = ("time", "y", "x")
    targets = {
        "tasmax": (fine, tasmax.astype(np.float32), {"units": "K", **attributes}),
        "pr": (fine, pr.astype(np.float32), {"units": "mm", **attributes}),
        "crs": ((), np.int32(0), LCC),
    }
    path = train / "target" / "pr_tasmax_CNRM-CM5_1961-1980.nc"
    packed = {"zlib": True, "chunksizes": (min(days, 64), size, size), "_FillValue": 1e20}
    xr.Dataset(targets, {"time": time, **places}).to_netcdf(
        path, engine="h5netcdf", encoding={"tasmax": packed, "pr": packed}
    )
    static = {"orog": (("y", "x"), orography.astype(np.float32), {"units": "m"})}
    xr.Dataset(static, places).to_netcdf(train / "predictors" / "Static_fields.nc", engine="h5netcdf")
    return path
