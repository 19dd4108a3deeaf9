"""Synthetic inputs of true structure, so that the whole pipeline runs on a machine without data or network.

What: `synthesize` writes Sentinel-2 products of level 2A, orthorectified Gaofen-2 scenes or an ImageNet-style class folder.
All show the same type of land: fields cut from Voronoi districts, a meandering river, roads, towns of rectangular
buildings, woods, hills in slanting light, with plausible spectra.
Why: a demo and its tests need images with something to learn in them, and files with the traps of real ones (offsets, three
grids, an unseen corner, a cloud, grey and small pictures).
Invariants: the same arguments give the same bytes in every run (Philox streams per scene, no clock); a folder appears whole
or not at all, and its synthetic.json names the arguments and every file; a folder with other content is never touched.
How to change it: a new kind of landscape is a row of `THEMES`; a new class is a row of `Cover` and of the spectra table; a
new kind of input is a module with a writer and a branch in `kinds.py`. Whatever changes bytes raises GENERATOR_VERSION.
"""

from dithc.data.synthetic.kinds import GENERATOR_VERSION, Kind, synthesize

__all__ = ["GENERATOR_VERSION", "Kind", "synthesize"]
