"""Commands for entire experiments: `init`, `run`, `status`, `report`, `reproduce`. `live_display` redraws lines of a terminal.

Commands are imported when they are called, not by this package. To add a command, add a module here and register it in
`dithc.cli`.
"""

__all__ = []
