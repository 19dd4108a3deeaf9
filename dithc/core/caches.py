"""Folders outside the results: caches, and the files of the project."""

import os
import stat
import tempfile
from pathlib import Path

from dithc.core.logging import get_logger

log = get_logger(__name__)

TUNING_VARIABLE = "DITHC_TUNING_FOLDER"
"""Environment variable with another folder for measured choices of kernels, or `off`."""
OFF = "off"


def is_writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, or in its nearest existing parent if the folder does not exist."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def cache_home() -> Path | None:
    """Return a writable cache folder, or None.

    The folder is `XDG_CACHE_HOME`, by default `~/.cache` of an existing home. If that is not writable, it is a private folder
    among the temporary files. The choice is logged.
    """
    variable, home = os.environ.get("XDG_CACHE_HOME"), os.path.expanduser("~")  # unchanged if the user has no home
    requested = Path(variable or f"{home}/.cache")
    try:
        private = Path(tempfile.gettempdir(), f"dithc-cache-{os.geteuid()}")
        if requested == private:  # an earlier process chose it
            return _private(private)
        if requested.is_absolute() and (variable or Path(home).is_dir()) and is_writable(requested):
            return requested
        log.warning(f"caches are in {_private(private)}: {requested} is not writable; set XDG_CACHE_HOME")
        return private
    except OSError as error:
        log.warning(f"no caches are kept: {error}; set XDG_CACHE_HOME to a writable folder")
        return None


def tuning_folder() -> Path | None:
    """Return the folder of measured choices, or None if DITHC_TUNING_FOLDER turns them off or no cache is writable."""
    setting = os.environ.get(TUNING_VARIABLE, "")
    if setting:
        return None if setting == OFF else Path(setting)
    home = cache_home()
    return home and home / "dithc/tuning"


def project_folder() -> Path:
    """Return the folder of Snakefile, workflow, config and profiles: `dithc/project` of a wheel, or the checkout."""
    package = Path(__file__).parents[1]
    return package / "project" if (package / "project").is_dir() else package.parent


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a private folder of this user")
    return folder
