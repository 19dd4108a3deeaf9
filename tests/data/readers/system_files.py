"""Files that operating systems, synchronization tools and packers leave next to user data."""

from pathlib import Path

NAMES = [".DS_Store", "._{}", ".ipynb_checkpoints/{}", ".snapshot/{}", "__MACOSX/{}", "__MACOSX/._{}"]
NAMES += ["{}@SynoEAStream", "Thumbs.db", "THUMBS.DB", "desktop.ini", "lost+found/{}", "$RECYCLE.BIN/{}", "RECYCLER/{}"]
NAMES += ["@eaDir/{}/SYNO_M.jpg", "#recycle/{}", "~$x", "System Volume Information/{}"]


def touch(folder: Path, *names: str) -> None:
    """Create empty files and their folders."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def add_system_files(folder: Path) -> None:
    """Add system files for every file and folder below a folder."""
    for path in [*folder.rglob("*")]:
        touch(path.parent, *(name.format(path.name) for name in NAMES))
