"""Verbs that look at what was written: describe and draw it, hash it again, write it for other programs.

What: `show` (pictures by `draw`), `verify` (`findings`: what is not as it was written), `export`.
Why: results are folders of numbers; people and other programs want something else.
Invariants: a verb's module is loaded when the verb is called, and this door loads none.
How to change it: a new verb is a module here, a line in `VERBS` of `dithc.cli` and a word in its `ROOMS`.
"""

__all__ = []
