"""The pixels of multispectral images beside each other: bands, indices, sums and spectra, in the units of the data set.

What: `measure` looks at a set of images, `file` keeps what was seen, `multispectral` compares two of them.
Invariants: comparing needs no torch and no images, only the files.
How to change it: another index is a line of `roles.py`.
"""

from typing import TYPE_CHECKING, Any

from dithc.evaluate.pixels import file, multispectral

if TYPE_CHECKING:
    from dithc.evaluate.pixels.measure import measure

__all__ = ["file", "measure", "multispectral"]


def __getattr__(name: str) -> Any:
    if name != "measure":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dithc.evaluate.pixels.measure import measure  # needs torch, which comparing does without

    globals()[name] = measure
    return measure
