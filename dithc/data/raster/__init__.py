"""Raster files: where rasterio enters (and in `grids.py` and `ground.py`) to read and write georeferenced images.

What: `read_raster` gives the pixels of a GeoTIFF or JPEG 2000 file and what it says of itself (`RasterInfo`); `write_geotiff`,
`write_cog` and `write_cog_by_rows` write losslessly, with a `BandLabel` for each band.
Why: GDAL's decoders stop where they have enough, and follow what a file says to other files and to the network.
Invariants: nothing but the file itself is read, under the settings `READING`; before it is decoded, every tile part of a JPEG
2000 file is followed to its end (`codestream`), and every deflated block of a TIFF compared with its checksum (`tiff`); what
was written is read back and compared, a GeoTIFF where the caller asks.
How to change it: another format is a driver with its signature in `reading.py` and its options in `writing.py`.
"""

from dithc.data.raster.reading import READING, Driver, RasterInfo, read_raster
from dithc.data.raster.writing import BandLabel, write_cog, write_cog_by_rows, write_geotiff

__all__ = [
    "READING",
    "BandLabel",
    "Driver",
    "RasterInfo",
    "read_raster",
    "write_cog",
    "write_cog_by_rows",
    "write_geotiff",
]
