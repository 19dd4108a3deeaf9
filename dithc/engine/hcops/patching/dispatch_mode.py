"""Calls of a patched model: intercepted by a mode of torch, served by the kernels or torch, and listed in a table."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dithc.engine.hcops.patching.autotune import AutotuneCache, AutotuneResult, measure
from dithc.engine.hcops.patching.operators import OPERATORS, Call, autocast_type, serve, torch_only, unsupported_reason
from dithc.engine.native import contexts

MEASURED = AutotuneCache()
"""Measured ratios of this process."""


@dataclass
class CallStats:
    """Row of the table: calls of one operator, shape and type, with the modules that make them.

    `dtype` is the type of the first tensor, and autocast's type. `ratio` is the time of the kernels divided by torch's,
    forward and backward; None if unmeasured.
    """

    op: str
    shape: str
    dtype: str
    served: bool
    ratio: float | None
    reason: str
    modules: dict[str, None] = field(default_factory=dict)


@dataclass
class CallTable:
    """Rows of a patched model by the properties that decide the choice."""

    rows: dict[tuple[Any, ...], CallStats] = field(default_factory=dict)
    always: bool = False

    def serves(self, call: Call, torch_call: Callable[..., Tensor], args: Any, kwargs: Any, module: str) -> bool:
        key = _key(call)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = self._decide(call, torch_call, args, kwargs)
        row.modules.setdefault(module)
        return row.served and unsupported_reason(call) is None  # depends on torch's present state

    def leave(self, op: str, reason: str, module: str) -> None:
        """Add a row for a call that torch runs without inspection of its tensors."""
        row = self.rows.setdefault((op, reason), CallStats(op, "", "", served=False, ratio=None, reason=reason))
        row.modules.setdefault(module)

    def _decide(self, call: Call, torch_call: Callable[..., Tensor], args: Any, kwargs: Any) -> CallStats:
        shape = " ".join("x".join(map(str, t.shape)) for t in call.tensors if t is not None)
        described = (call.op, shape, _type_names(call))
        if (reason := unsupported_reason(call)) is not None:
            return CallStats(*described, served=False, ratio=None, reason=reason)
        if self.always:
            return CallStats(*described, served=True, ratio=None, reason="requested, unmeasured")
        text = " ".join(map(str, (*_key(call), *(("torch's threads",) if contexts.is_borrowing() else ()))))
        if (ratio := MEASURED.get(text)) is None:
            ratio = _measure(torch_call, args, kwargs)
            MEASURED.add(text, ratio)
        reason = "faster" if ratio.is_faster else "not clearly faster than torch"
        return CallStats(*described, served=ratio.is_faster, ratio=ratio.ratio, reason=reason)


class DispatchMode(TorchFunctionMode):
    """Mode that lets the kernels serve torch calls if they are faster. It is disabled inside a call."""

    def __init__(self, calls: CallTable, module: Callable[[], str]) -> None:
        super().__init__()
        self._calls, self._module = calls, module

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        bind = None if torch.compiler.is_compiling() else OPERATORS.get(func)
        if bind is None:
            return func(*args, **kwargs)
        if (reason := torch_only(*args, *kwargs.values())) is not None:
            self._calls.leave(bind.__name__, reason, self._module())
            return func(*args, **kwargs)
        try:
            call = bind(*args, **kwargs)
        except (TypeError, AttributeError, IndexError, ZeroDivisionError):  # torch reports such arguments
            return func(*args, **kwargs)
        if self._calls.serves(call, func, args, kwargs, self._module()):
            return serve(call)
        return func(*args, **kwargs)


def _key(call: Call) -> tuple[Any, ...]:
    """Return the properties that decide the choice. Runs at every call, so it uses only cheap properties."""
    autocast = autocast_type()
    tensors = tuple(
        None if t is None else (*t.shape, t.dtype, t.requires_grad, t.is_contiguous()) for t in call.tensors
    )
    by_hand = () if call.by_hand is None else ("by hand",)
    devices = sorted({str(t.device) for t in call.tensors if t is not None and not t.is_cpu})
    settings = (call.op, *by_hand, *call.settings, call.rejection)
    return (*settings, autocast, torch.is_grad_enabled(), *tensors, *devices)


def _type_names(call: Call) -> str:
    first, autocast = call.tensors[0], autocast_type()
    assert first is not None
    name = str(first.dtype).removeprefix("torch.")
    return name if autocast is None else f"{name}, autocast {str(autocast).removeprefix('torch.')}"


def _measure(torch_call: Callable[..., Tensor], args: Any, kwargs: Any) -> AutotuneResult:
    """Time both implementations with the tensors of the call as separate leaves."""
    leaves: list[Tensor] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        copy = value.detach().requires_grad_(value.requires_grad)
        if copy.requires_grad:
            leaves.append(copy)
        return copy

    args, kwargs = tuple(leaf(value) for value in args), {name: leaf(value) for name, value in kwargs.items()}
    call = OPERATORS[torch_call](*args, **kwargs)
    inputs = tuple(leaves) if torch.is_grad_enabled() else ()
    return measure(lambda: torch_call(*args, **kwargs), lambda: serve(call), inputs)
