"""Commands that prepare training data, in workflow order: `synthesize`, `fetch`, `ingest`, `tiles`, `codec`, `latents`.

A failed stage can be rerun by hand with the shell line of its rule.
Commands are imported when they are called, not by this package. To add a command, add a module here and register it in
`dithc.cli`.
"""

__all__ = []
