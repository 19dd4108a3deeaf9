"""The choice of back end that is active in this process: the only state of the room, with `use` as its only writer."""

import os
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import Any

from dithc import native
from dithc.hcops.table import Choice, choose, default, obstacle, raw_of
from dithc.hcops.tuning import summary
from dithc.log import logger, problem
from dithc.native import ISA_VARIABLE

log = logger(__name__)

_first, _reason = default()
_active: dict[str, Choice] = choose(_first, because=_reason)
_raw: dict[str, Callable[..., Any]] = {}  # of the active choice, as they were asked for
_said: set[tuple[str, str]] = set()
_said_default: list[bool] = []  # not empty: the default was logged, or somebody has chosen


def backend_of(op: str) -> str:
    """The back end that serves an operator now."""
    return _active[op].backend


def raw(name: str) -> Callable[..., Any]:
    """Return the active raw kernel `name`, such as linear_backward; raise UserError if its back end has none."""
    try:
        return _raw[name]
    except KeyError:
        _raw[name] = raw_of(backend_of(name.removesuffix("_forward").removesuffix("_backward")), name)
        return _raw[name]


class use:  # reads as a verb at the place of use
    """Select `backend` for `ops` (None: all operators), permanently or within a `with` block.

    Raises:
        UserError: The table has no such back end or operator, or the back end is unavailable; the selection is unchanged.
    """

    def __init__(self, backend: str, *, ops: Collection[str] | None = None) -> None:
        chosen = _only(choose(backend), ops)
        if why := obstacle(backend):
            fix = "choose another, or mend what is named"
            raise problem(f"back end {backend} of the operators", got=why, expected="one that works here", fix=fix)
        self._previous = dict(_active)
        _activate(chosen)
        _said_default.append(True)
        log.info("%s served by back end %s", "operators" if ops is None else ", ".join(chosen), backend)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _activate(self._previous)


def _only(chosen: dict[str, Choice], ops: Collection[str] | None) -> dict[str, Choice]:
    """The choices for some operators, all of which the table has."""
    if unknown := sorted(set(ops or ()) - set(chosen)):
        expected = f"some of {', '.join(chosen)}"
        raise problem("operators of a back end", got=", ".join(unknown), expected=expected, fix="correct the names")
    return chosen if ops is None else {op: choice for op, choice in chosen.items() if op in ops}


def _activate(choices: dict[str, Choice]) -> None:
    _active.update(choices)
    _raw.clear()


def describe() -> list[dict[str, str]]:
    """Which kernel serves each operator now: a row with `op`, `backend`, `kernel` and `why` for each.

    With C kernels the reason names the instruction set and who chose it, and that of `linear` the tuning in use.

    Inputs that a fast back end does not take are served by the reference all the same: types other than fp32 and bf16 (fp64
    for checks of gradients), devices other than the CPU, subclasses of Tensor, transformations of torch.func and forward-mode
    differentiation. The first time that happens to an operator, a line of the log says so.
    """
    return [
        {"op": op, "backend": choice.backend, "kernel": _kernel(choice), "why": _why(choice)}
        for op, choice in _active.items()
    ]


def say_once(op: str, text: str, *arguments: object) -> None:
    """Logs a warning about an operator, once."""
    if (op, text) not in _said:
        _said.add((op, text))
        log.warning(text, *arguments)


def say_default() -> None:
    """Logs, at the first operator, which back end serves where nobody has chosen one."""
    if not _said_default:
        _said_default.append(True)
        level = log.info if _first == "c" else log.warning
        level("operators served by back end %s by default: %s", _first, _reason)


def _why(choice: Choice) -> str:
    if choice.backend != "c":
        return choice.why
    reasons = [choice.why]
    if choice.spec.parts:
        asked = os.environ.get(ISA_VARIABLE)
        reasons.append(f"{native.isa()}, {f'which {ISA_VARIABLE} names' if asked else 'the fastest of this CPU'}")
    if choice.spec.name == "linear" and (tuned := summary()):
        reasons.append(tuned)
    return "; ".join(reasons)


def _kernel(choice: Choice) -> str:
    spec = choice.spec
    if choice.backend != "c":
        return f"{choice.backend} {spec.name}"
    serving = [f"{name} {isa}" for name, isa in native.kernels() if any(fnmatchcase(name, part) for part in spec.parts)]
    return ", ".join(serving) or f"{spec.name} (plain C)"
