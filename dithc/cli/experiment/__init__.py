"""Commands for entire experiments: `run`, `status`, `report`, `paper`. `live_display` redraws lines in place on a terminal.

Commands are imported when they are called, not by this package. To add a command, add a module here and register it in
`dithc.cli`.
"""

__all__ = []
