"""Commands that generate and evaluate images: `sample`, `restore`, `search-guidance`, `extractor`, `features`, `fid`.

`image_sets` opens the images for `features`. Generated and real images take the same path to a score.
Commands are imported when they are called, not by this package. To add a command, add a module here and register it in
`dithc.cli`.
"""

__all__ = []
