"""Scratch folders. dithc may delete all of their content."""

import shutil
from pathlib import Path

from dithc.core.artifacts.outputs.listing import MARKER_DEPTH, MARKER_FILE, SCRATCH, FileList
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import get_logger, user_error

log = get_logger(__name__)


def make_scratch(folder: Path) -> None:
    """Create a scratch folder; raises UserError if it exists and contains files of the user."""
    output = FileList(folder)
    if output.is_scratch:
        return
    if unknown := next(output.unknown({}), None):
        raise user_error(
            f"{folder} is not a temporary folder of dithc",
            got=unknown,
            expected="no folder of this name, or an empty folder",
            fix="move the folder elsewhere, or choose another output folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER_FILE).write_text(dump_checksummed({SCRATCH: True, "files": {}}))


def remove(folder: Path, *, reason: str | None = None, manifest: str = "manifest.json") -> None:
    """Delete a scratch folder or a folder inside it; of other folders, delete the files in their marker or manifest."""
    if folder.is_symlink() or not folder.is_dir():
        return
    if reason:
        log.info(f"removing {folder}: {reason}")
    if any(FileList(parent).is_scratch for parent in [folder, *folder.parents[:MARKER_DEPTH]]):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        FileList(folder, manifest=manifest).delete()
    if folder.exists():
        log.warning(f"{folder} is kept: it contains files that dithc did not write")
