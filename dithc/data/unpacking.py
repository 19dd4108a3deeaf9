"""Where archives are unpacked, for as long as what is in them is read."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dithc.data.scene import Refused
from dithc.log import UserError, problem

SPARE_BYTES = 1 << 30
"""Of the disk, left alone."""


class NoRoom(UserError):
    """The disk lacks, not the archive: nothing to go on with the next one for."""


@contextmanager
def scratch(archive: Path) -> Iterator[Path]:
    """An empty folder where TMPDIR says, removed again at the end.

    Errors that name files in it name them below the archive instead, so that they are the same in every run.

    Raises:
        NoRoom: the disk became full.
    """
    with tempfile.TemporaryDirectory(prefix="dithc-", ignore_cleanup_errors=True) as name:
        try:
            yield Path(name)
        except NoRoom:
            raise
        except Refused as error:
            texts = {key: getattr(error, key).replace(name, str(archive)) for key in ("got", "expected", "remedy")}
            raise Refused(error.reason, error.what.replace(name, str(archive)), **texts) from error
        except (UserError, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_room(archive, got=str(error.strerror)) from error
            kind = UserError if isinstance(error, UserError) else OSError
            raise kind(str(error).replace(name, str(archive))) from error


def check_disk(archive: Path, num_bytes: int, folder: Path) -> None:
    """Whether there is room for what is about to be unpacked.

    Raises:
        NoRoom: there is not.
    """
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if num_bytes > free:
        raise no_room(archive, got=f"{num_bytes / 2**30:.1f} GiB to unpack")


def no_room(archive: Path, *, got: str) -> NoRoom:
    """What is said where the disk lacks."""
    return NoRoom(
        str(
            problem(
                f"there is no room to unpack {archive.name}",
                got=got,
                expected=f"that much free in {tempfile.gettempdir()}, and {SPARE_BYTES / 2**30:g} GiB that is left alone",
                remedy="let the variable TMPDIR name a folder with room, or unpack the product yourself",
            )
        )
    )
