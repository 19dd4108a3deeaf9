"""Verbs about machines: what this one is, what suits it, how another one would do.

What: `doctor`, `tune`, `simulate`; measurements are in `bench`, ranks are started by `launch`.
Why: the same training is ten times slower on a machine that is set up badly.
Invariants: a verb's module is loaded when the verb is called, and this door loads none.
How to change it: a new verb is a module here, a line in `VERBS` of `dithc.cli` and a word in its `ROOMS`.
"""

__all__ = []
