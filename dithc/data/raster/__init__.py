"""Reading and writing of georeferenced raster files.

Only this package, `grids.py` and `readers/gaofen2/orthorectify.py` import rasterio.

Purpose: `read_raster` returns the pixels of a GeoTIFF or JPEG 2000 file and its metadata (`RasterInfo`).
`write_geotiff` and `write_cog` write losslessly, with a `BandLabel` for each band. GDAL's
decoders stop early, and they follow names in a file to other files and to the network.

Contents: `reading` decodes, `companions` finds mask and world file, `labels` reads and writes metadata of bands,
`jpeg2000_check` and `tiff_check` verify files, `writing` writes.

Invariants: GDAL opens single files with the settings `READING`. Before decoding, every tile part of a JPEG 2000 file
is followed to its end and every deflated block of a TIFF file is compared with its checksum. Validity follows GDAL: a
mask replaces the no-data value, and an alpha band is never data. Written files are read back and compared, a GeoTIFF
on request.

Extending: another format is a driver with its signature in `reading.py` and its options in `writing.py`.
"""

from dithc.data.raster.labels import BandLabel
from dithc.data.raster.reading import READING, Driver, RasterInfo, read_raster, read_window
from dithc.data.raster.writing import write_cog, write_geotiff

__all__ = ["READING", "BandLabel", "Driver", "RasterInfo", "read_raster", "read_window", "write_cog", "write_geotiff"]
