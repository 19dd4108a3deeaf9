"""Errors that a user can correct, in four lines: title, got, expected, fix."""

import errno

from dithc.core.logging.escaping import escaped

RAISE_FILE_LIMIT = "raise the limit on the size of files (`ulimit -f unlimited`); then start again"


class UserError(ValueError):
    """An error in input, configuration or environment, printed without a traceback; the exit status is `status`."""

    status = 2


def user_error(title: str, *, got: object, expected: object, fix: str) -> UserError:
    """Build a user error. Every part is escaped; a line break stays if at least four spaces follow it.

    Args:
        title: Title: the wrong file, key or option, and its fault.
        got: The value or the error that was found. The limit on the size of files has its own fix.
        expected: The allowed values.
        fix: An imperative or a command.
    """
    if isinstance(got, OSError) and got.errno == errno.EFBIG:
        fix = RAISE_FILE_LIMIT
    title, got, expected, fix = (escaped(str(part), indent=4) for part in (title, got, expected, fix))
    return UserError(f"{title}\n  got:      {got}\n  expected: {expected}\n  fix:      {fix}")


def unwritten(
    name: str, path: object, error: object, *, kept: str = "", fix: str = "free space, then start again"
) -> UserError:
    """Build the error of a failed write of `name` to a file or folder; `kept` names what is complete."""
    expected = f"a writable folder with enough space{'; ' * bool(kept)}{kept}"
    return user_error(f"{name} could not be written to {path}", got=error, expected=expected, fix=fix)
