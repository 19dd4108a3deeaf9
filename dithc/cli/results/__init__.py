"""Commands for existing outputs: `show` describes and draws them, `verify` checks their hashes, `export` converts them.

Commands are imported when they are called, not by this package. To add a command, add a module here and register it in
`dithc.cli`.
"""

__all__ = []
