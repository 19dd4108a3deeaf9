"""Plugin of pytest (-p) that loads the C library named by DITHC_EMULATED_TILES, which runs AMX kernels on a tile unit
in C.

Only tests set this variable, and only a process that loads this file reads it.
"""

import os
from pathlib import Path

from dithc.engine.native import loading

loading.LIBRARY = Path(os.environ["DITHC_EMULATED_TILES"])
