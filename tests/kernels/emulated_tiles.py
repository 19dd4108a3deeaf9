"""A plug-in for pytest (-p): the C kernels of this process are those of the library that DITHC_EMULATED_TILES names, which
runs AMX kernels on a tile unit in C. Only tests know this variable, and only a process that loads this file heeds it."""

import os
from pathlib import Path

from dithc.native import loading

loading.LIBRARY = Path(os.environ["DITHC_EMULATED_TILES"])
