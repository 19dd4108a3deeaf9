"""`patch` and `unpatch`: hooks that open the mode around the modules of a model, and the table of served calls."""

import os
import threading
import weakref
from collections import Counter
from typing import Any, Literal, get_args

import torch
from torch import nn

from dithc.core.logging import get_logger, user_error
from dithc.core.measurements import Table
from dithc.engine.hcops.patching.custom_rmsnorm import PatchedRmsNorm, eps_of
from dithc.engine.hcops.patching.dispatch_mode import CallStats, CallTable, DispatchMode
from dithc.engine.hcops.patching.optimizer import attach, detach
from dithc.engine.native import contexts

log = get_logger(__name__)

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables that set how torch's threads wait for work. The OpenMP runtime reads them at torch's import."""
Threads = Literal["torch", "own"]
HEADER = ["operator", "shape", "type", "served by", "ours / torch", "reason", "modules"]


class PatchedModel:
    """The given model with calls served by HCOps, and its optimizer or None; `str` returns the table."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, calls: CallTable) -> None:
        self.model, self.optimizer, self._calls = model, optimizer, calls

    def table(self) -> list[CallStats]:
        """Return a row for each operator, shape and type that the model has called so far."""
        return list(self._calls.rows.values())

    def __str__(self) -> str:
        rows = [_cells(row) for row in self.table()]
        return "\n".join(Table(title="", head=HEADER, rows=rows, texts=len(HEADER)).lines())


def patch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    always: bool = False,
    threads: Threads = "torch",
) -> PatchedModel:
    """Serve a model's calls of linear, layer_norm, rms_norm, gelu, silu and scaled_dot_product_attention by HCOps.

    The first call of an operator, shape and type is measured against torch, forward and backward. HCOps then serves it
    only if it is faster. The result is stored with the tuning of this machine (see `dithc tune-kernels`). Deep copies of the
    model are served too. torch runs a patched model unchanged under torch.compile, and in torch.jit.trace,
    torch.export, torch.fx, torch.func and modes that intercept every operator.

    Args:
        model: Any module on the CPU, in fp32, in bf16 or under autocast to bf16.
        optimizer: A torch.optim.AdamW. Its update becomes one pass over memory; its state_dict is unchanged.
        always: Serve all supported calls unmeasured, for tests and comparisons.
        threads: Threads of the kernels. `torch` uses the threads of torch's operators, if torch has OpenMP, for all
            operators of this process while a model is patched, so that two sets of threads do not compete for cores.
            `own` uses a separate pinned team. The log reports the choice.

    Returns:
        An object with a table of calls, back ends and reasons.

    Raises:
        UserError: The model is patched already, the optimizer is not AdamW, or `threads` is unknown.
    """
    if threads not in get_args(Threads):
        got, expected = repr(threads), " or ".join(map(repr, get_args(Threads)))
        raise user_error("hcops.patch, argument threads", got=got, expected=expected, fix="give one of these")
    if any(isinstance(hook, _Hook) for module in model.modules() for hook in module._forward_pre_hooks.values()):
        raise user_error(
            "hcops.patch", got="a model that is patched", expected="one that is not", fix="hcops.unpatch first"
        )
    if optimizer is not None:
        attach(optimizer)
    mode = _open(CallTable(always=always), threads)
    for name, module in model.named_modules():
        if module is model or next(module.children(), None) is not None:
            hook = _Hook(mode, name, is_root=module is model)
            module.register_forward_pre_hook(hook, prepend=True)
            module.register_forward_hook(hook, always_call=True)
        elif (eps := eps_of(module)) is not None:
            module.forward = PatchedRmsNorm(module, eps)
    return PatchedModel(model, optimizer, mode.calls)


def unpatch(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Undo `patch`, also for a copy of a patched model. Later results equal the results before the patch bit for bit."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), PatchedRmsNorm):
            del module.forward
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for number, hook in list(hooks.items()):
                if isinstance(hook, _Hook):
                    hook._mode.close()
                    del hooks[number]
                    module._forward_hooks_always_called.pop(number, None)
    if optimizer is not None:
        detach(optimizer)


class _ActiveMode(threading.local):
    """Mode of a patched model, active in this thread while one of its modules runs. Copies share it."""

    def __init__(self, calls: CallTable, threads: Threads) -> None:
        self.calls, self._threads = calls, threads
        self._stack: list[tuple[nn.Module, str]] = []
        self._mode: DispatchMode | None = None
        self._is_logged = False

    def close(self) -> None:
        """End the pass, also after Ctrl-C, because torch then calls no hooks."""
        self._stack.clear()
        mode, self._mode = self._mode, None
        current = torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
        if mode is not None and current is mode:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def enter(self, module: nn.Module, name: str) -> None:
        if any(entered is module for entered, _ in self._stack[:1]):  # the root module again, outside of any pass
            self.close()
        self._stack.append((module, name))
        if self._mode is None:
            self._mode = DispatchMode(self.calls, self.module_name)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, module: nn.Module, *, is_root: bool) -> None:
        if not self._stack or self._stack[-1][0] is not module:
            return  # an earlier hook failed, so this module was never entered
        self._stack.pop()
        if not self._stack:
            self.close()
        if is_root and not self._is_logged:
            self._is_logged = True
            log.info("%s", _summary(self.calls))

    def module_name(self) -> str:
        return self._stack[-1][1]

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ActiveMode":
        return self

    def __reduce__(self) -> Any:
        """Store the patch without measured rows."""
        return _open, (CallTable(always=self.calls.always), self._threads)


def _open(calls: CallTable, threads: Threads) -> _ActiveMode:
    """Create the mode. The kernels use torch's threads until the last module that refers to it is removed or unpatched."""
    mode = _ActiveMode(calls, threads)
    reason = contexts.borrow() if threads == "torch" else "requested"
    if reason is None:
        weakref.finalize(mode, contexts.give_back)
        log.info("kernels run on torch's threads, so that no other threads compete for the cores")
    else:
        log.info("kernels use a separate team of threads: %s", reason)
        _warn_about_spinning()
    return mode


class _Hook:
    """Hook before a module's forward pass, and after it with its output. Inactive under torch.compile."""

    def __init__(self, mode: _ActiveMode, name: str, *, is_root: bool) -> None:
        self._mode, self._name, self._is_root = mode, name, is_root

    def __call__(self, module: nn.Module, _: Any, *output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if output:
            self._mode.leave(module, is_root=self._is_root)
        else:
            self._mode.enter(module, self._name)


def _warn_about_spinning() -> None:
    """Warn if torch's threads spin for milliseconds after each operator, on the cores that the kernels need."""
    if torch.get_num_threads() > 1 and not any(name in os.environ for name in WAITING):
        log.warning(
            "torch's threads spin on their cores after each operator and delay the kernels: set GOMP_SPINCOUNT=10000 in the "
            "environment before torch is imported; otherwise fewer calls are served, and slower"
        )


def _cells(row: CallStats) -> list[str]:
    first, *rest = row.modules
    modules = f"{first or '(model)'}{f' and {len(rest)} more' if rest else ''}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return [row.op, row.shape, row.dtype, "hcops" if row.served else "torch", ratio, row.reason, modules]


def _summary(calls: CallTable) -> str:
    """Return one line with the share of served calls per operator, and the reasons for the others."""
    rows = list(calls.rows.values())
    total, served_counts = Counter(row.op for row in rows), Counter(row.op for row in rows if row.served)
    reasons = sorted({f"{row.op}: {row.reason}" for row in rows if not row.served})
    shares = ", ".join(f"{op} {served_counts[op]} of {number}" for op, number in total.items()) or "none"
    return f"patched model, types of calls that HCOps serves: {shares}" + (
        f"; not {'; '.join(reasons)}" if reasons else ""
    )
