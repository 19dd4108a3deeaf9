"""Names that operating systems, synchronization tools and packers create next to user data.

Every listing of user files uses `is_system_file`. A new name is one entry of `NAMES`, in lower case.
"""

from pathlib import PurePath

NAMES = frozenset(
    {
        *("__macosx", "icon\r", "network trash folder", "temporary items"),  # macOS; further names begin with a dot
        *("thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "$recycle.bin", "recycler"),
        *("system volume information",),
        *("@eadir", "@tmp", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "~snapshot"),  # network storage
        *("lost+found", "aquota.user", "aquota.group", "@longlink", "__pycache__"),
    }
)
STARTS = (".", "~$", "found.0", "paxheader")  # hidden files, locks of editors, recovered fragments, headers of tar
ENDS = ("@synoeastream", "@synoresource", "zone.identifier")  # extended attributes as files


def is_system_file(path: str | PurePath) -> bool:
    """Return whether a relative path has a hidden or system name in it, which never denotes data; `..` is no name."""
    names = [name.casefold() for name in PurePath(path).parts if name != ".."]
    return any(name in NAMES or name.startswith(STARTS) or name.endswith(ENDS) for name in names)
