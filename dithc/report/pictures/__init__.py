"""Pictures: generated images beside real tiles, in true and in false colours, on the way through a training, and their spectra.

What: `galleries` reads the first images of each evaluation and tiles drawn from its data set, and lays them out as mosaics with
a title, a caption and a text that says what is seen; `strips` are a first look; `measure_spectra` measures the values by band and
the power by frequency of such images.
Why: a score is believed when the images are looked at: beside the real tiles nearest to them, and in the bands that are used.
Invariants: images are never picked: the first of each evaluation, and tiles drawn by the experiment's seed; both sides have the
same stretch; a file is compared with its manifest before it is shown; what is missing is left out, with the reason.
How to change it: another composite of bands is a line in `composites.py`; another row of mosaics a function in `gallery.py`.
"""

from dithc.report.pictures.gallery import FALSE_COLOURS, Gallery, Picture, galleries, strips
from dithc.report.pictures.measured import measure_spectra

__all__ = ["FALSE_COLOURS", "Gallery", "Picture", "galleries", "measure_spectra", "strips"]
