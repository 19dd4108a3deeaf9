"""Commands that prepare training data, in the order of the workflow: scenes, tiles, latents.

Purpose: a failed stage can be rerun by hand with the shell line of its rule.

Contents: `synthesize`, `fetch`, `stage`, `tiles`, `codec`, `latents`.

Invariants: a command's module is imported when the command is called. This package imports none of them.

Extending: add a module here, a line in `VERBS` of `dithc.cli` and a name in its `ROOMS`.
"""

__all__ = []
