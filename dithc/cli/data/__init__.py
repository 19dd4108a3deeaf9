"""Verbs that make what is trained on, in the order of the workflow: scenes, tiles, latents.

What: `synthesize`, `fetch`, `stage`, `tiles`, `codec`, `latents`, each a stage or what comes before the first.
Why: a stage that fails is run again by hand with the line that its rule has.
Invariants: a verb's module is loaded when the verb is called, and this door loads none.
How to change it: a new verb is a module here, a line in `VERBS` of `dithc.cli` and a word in its `ROOMS`.
"""

__all__ = []
