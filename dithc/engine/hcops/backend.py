"""Active choice of back ends. Only `use` changes it."""

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import Any

from dithc.core.logging import get_logger, user_error
from dithc.engine import native
from dithc.engine.hcops.kernel_registry import KernelChoice, choose, default, obstacle, raw_of
from dithc.engine.hcops.tuning import summary

log = get_logger(__name__)

_default_backend, _default_reason = default()
_active: dict[str, KernelChoice] = choose(_default_backend, reason=_default_reason)
_raw: dict[str, Callable[..., Any]] = {}  # cache of the active choice
_logged: set[tuple[str, str]] = set()
_default_logged: list[bool] = []  # not empty after the default was logged or a back end was selected


def backend_of(op: str) -> str:
    return _active[op].backend


def raw(name: str) -> Callable[..., Any]:
    """Return the active raw kernel `name`, such as linear_backward; raise UserError if its back end has none."""
    try:
        return _raw[name]
    except KeyError:
        _raw[name] = raw_of(backend_of(name.removesuffix("_forward").removesuffix("_backward")), name)
        return _raw[name]


class use:  # lower case because call sites use it like a function
    """Select `backend` for `ops` (None: all operators), permanently or within a `with` block.

    UserError: the table lacks the back end or operator, or the back end is unavailable. The selection is unchanged.
    """

    def __init__(self, backend: str, *, ops: Collection[str] | None = None) -> None:
        choices = choose(backend)
        if unknown := sorted(set(ops or ()) - set(choices)):
            expected = f"some of {', '.join(choices)}"
            raise user_error(
                "operators of a back end", got=", ".join(unknown), expected=expected, fix="correct the names"
            )
        choices = {op: choice for op, choice in choices.items() if ops is None or op in ops}
        if cause := obstacle(backend):
            fix = "select another back end, or remove the reported cause"
            raise user_error(
                f"back end {backend} of the operators", got=cause, expected="an available back end", fix=fix
            )
        self._previous = dict(_active)
        _activate(choices)
        _default_logged.append(True)
        log.info("%s served by back end %s", "operators" if ops is None else ", ".join(choices), backend)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _activate(self._previous)


def _activate(choices: dict[str, KernelChoice]) -> None:
    _active.update(choices)
    _raw.clear()


def describe_kernels() -> list[dict[str, str]]:
    """Return a row with `op`, `backend`, `kernel` and `reason` for each operator.

    The reference computes inputs that a fast back end does not support: types other than fp32 and bf16 (such as fp64 for
    gradient checks), devices other than the CPU, subclasses of Tensor, transformations of torch.func and forward-mode
    differentiation. The log reports the first case per operator.
    """
    return [
        {"op": op, "backend": choice.backend, "kernel": _kernel(choice), "reason": _reason(choice)}
        for op, choice in _active.items()
    ]


def log_once(op: str, text: str, *arguments: object) -> None:
    if (op, text) not in _logged:
        _logged.add((op, text))
        log.warning(text, *arguments)


def log_default() -> None:
    """Log the default back end at the first operator call unless a back end was selected."""
    if not _default_logged:
        _default_logged.append(True)
        level = log.info if _default_backend == "c" else log.warning
        level("operators served by back end %s by default: %s", _default_backend, _default_reason)


def _reason(choice: KernelChoice) -> str:
    if choice.backend != "c":
        return choice.reason
    isa = f"{native.instruction_set()}, {native.isa_choice().reason}" if choice.spec.parts else None
    tuned = summary() if choice.spec.name == "linear" else None
    return "; ".join(filter(None, (choice.reason, isa, tuned)))


def _kernel(choice: KernelChoice) -> str:
    spec = choice.spec
    if choice.backend != "c":
        return f"{choice.backend} {spec.name}"
    serving = [f"{name} {isa}" for name, isa in native.kernels() if any(fnmatchcase(name, part) for part in spec.parts)]
    return ", ".join(serving) or f"{spec.name} (plain C)"
