"""Generated inputs with the structure of real data, so that the workflow runs on machines without data or network.

Purpose: demos and tests need images with learnable structure, and files with the pitfalls of real data: offsets, three
grids, a corner without data, a cloud, gray and small images.
Contents: `synthesize` writes Sentinel-2 products of level 2A, orthorectified Gaofen-2 scenes or an ImageNet-style class
folder. All show the same type of land: fields in Voronoi districts, a meandering river, roads, towns of rectangular
buildings, woods and hills under slanting light, with plausible spectra.
Invariants: the same arguments produce the same bytes in every process (one Philox stream per scene, no clock). A folder
appears complete or not at all. A folder with files of the user is never touched.
Extending: a new landscape is a row of `THEMES`. A new land cover is a row of `Cover` and of the spectra table. A new
kind of input is a module with a writer, a row of `kinds.LIMITS` and a branch in `kinds.py`.
"""

from dithc.data.synthetic.kinds import synthesize

__all__ = ["synthesize"]
