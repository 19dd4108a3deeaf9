"""Commands for machines: `doctor` checks, `tune-kernels` tunes, `simulate` predicts. `bench` measures, `launch` starts ranks.

Commands are imported when they are called, not by this package. To add a command, add a module here and register it in
`dithc.cli`.
"""

__all__ = []
