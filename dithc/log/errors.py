"""The error a user can mend: it says what is wrong, what was got, what was expected, and the remedy."""


class UserError(ValueError):
    """A mistake in input, configuration or environment; the command line prints it without a traceback and ends with `status`."""

    status = 2


def problem(what: str, *, got: object, expected: object, remedy: str) -> UserError:
    """Builds a user error in the one shape all of dithc uses.

    Args:
        what: the thing that is wrong, with its file, key or option.
        got: what was found.
        expected: what would have been right.
        remedy: what to do now.

    Returns:
        The error, for the caller to raise.
    """
    return UserError(f"{what}\n  got:      {got}\n  expected: {expected}\n  remedy:   {remedy}")
