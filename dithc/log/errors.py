"""Errors that a user can correct, in four lines: title, got, expected, remedy."""

from dithc.log.escaping import escaped


class UserError(ValueError):
    """A mistake in input, configuration or environment; the command line prints it without a traceback and ends with `status`."""

    status = 2


def problem(what: str, *, got: object, expected: object, remedy: str) -> UserError:
    """Build a user error. Every part is escaped; a line break stays if at least four spaces follow it.

    Args:
        what: title: the wrong file, key or option, and its fault.
        got: the value that was found.
        expected: the values that are allowed.
        remedy: an imperative or a command.

    Returns:
        The error, for the caller to raise.
    """
    what, got, expected, remedy = (escaped(str(part), indent=4) for part in (what, got, expected, remedy))
    return UserError(f"{what}\n  got:      {got}\n  expected: {expected}\n  remedy:   {remedy}")
