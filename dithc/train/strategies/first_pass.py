"""Observation of a model's first passes before training: called modules, and early reads of weights."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dithc.core.logging import user_error


class ForwardRecorder(TorchFunctionMode):
    """Recorder of one forward pass of a model, as a context.

    `parts` are the outermost called submodules in call order. `early` are parameters read before a call of their module,
    as in `linear(x, self.head.weight)`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts: list[nn.Module] = []
        self.early: list[Tensor] = []
        self._model, self._stack, self._depth = model, ExitStack(), 0
        self._open = {id(parameter) for parameter in model.parameters()}

    def __enter__(self) -> "ForwardRecorder":
        for module in self._model.modules():
            if module is not self._model and not isinstance(module, torch.jit.ScriptModule):
                self._stack.callback(module.register_forward_pre_hook(self._enter).remove)
                self._stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: Any) -> None:
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        self._stack.close()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the parameters among the arguments of any torch function."""
        for value in tree_leaves((args, kwargs or {})):
            if isinstance(value, nn.Parameter) and id(value) in self._open:
                self._open.remove(id(value))
                self.early.append(value)
        return function(*args, **(kwargs or {}))

    def _enter(self, module: nn.Module, _: Any) -> None:
        if self._depth == 0 and module not in self.parts:
            self.parts.append(module)
            self._open -= {id(parameter) for parameter in module.parameters()}
        self._depth += 1

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        self._depth -= 1


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[list[str]]:
    """Restore buffers and random state after the block; the yielded list then names the buffers that changed."""
    before = {name: value.detach().clone() for name, value in model.named_buffers()}
    changed: list[str] = []
    with torch.random.fork_rng(devices=[]):
        yield changed
    with torch.no_grad():
        for name, value in model.named_buffers():
            if name in before and value.shape == before[name].shape and not torch.equal(value, before[name]):
                value.copy_(before[name])
                changed.append(name)
    # The mean of zeros may stay 0 while other buffers of its module change.
    owners = {name.rpartition(".")[0] for name in changed}
    changed[:] = [name for name in before if name.rpartition(".")[0] in owners]


def mean_square(output: Any) -> Tensor:
    """Return a scalar of all tensors of a (nested) output; UserError if none of them has a gradient."""
    values = [value for value in tree_leaves(output) if isinstance(value, Tensor) and value.requires_grad]
    if not values:
        raise user_error(
            "output of the module for `prepare`",
            got=f"{type(output).__name__} without a tensor that has a gradient",
            expected="a tensor, or tuples, lists and dictionaries of tensors",
            fix="pass `loss_of` to `prepare`, a function that returns a scalar of the output",
        )
    first, *terms = (value.float().square().mean() for value in values)
    return sum(terms, start=first)
