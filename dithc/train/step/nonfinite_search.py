"""Search for the first layer with a number that is not finite, in a step repeated on this rank.

n is the number of images of a micro-batch.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MAX_IMAGES_NAMED = 4


class NonFiniteSearch:
    """Search for the first number that is not finite, in the passes of a module during a `with` block.

    Order: weights, then per micro-batch images, layer outputs, loss and parameter gradients. `found` describes the first
    location, None if all numbers are finite.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = dict(_network(module).named_modules())
        self._weights = weights_of(module)
        self._stack = ExitStack()
        self._part = slice(0, 0)
        self.found: str | None = None
        self.in_weights = False

    def __enter__(self) -> Self:
        if bad := bad_weights(self._weights):
            self.in_weights = True
            self.found = describe_weights(bad)
        for name, layer in self._layers.items():
            handle: Any = layer.register_forward_hook(partial(self._check_layer, name), with_kwargs=True)
            self._stack.callback(handle.remove)
        for name, parameter in self._weights.items():
            if parameter.requires_grad:
                hook = partial(self._check_gradient, name)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._stack.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def images(self, x: Tensor, noise: Tensor, *, part: slice) -> list[int]:
        """Begin images `part` with noise (n, C, height, width); return those with bad values if these come first."""
        self._part = part
        for name, values in (("latents", x), ("noise", noise)):
            if self.found is None and not _is_finite(values):
                self.found = f"the {name} of {self._describe_images(values)}, before any layer"
                return [part.start + index for index in _bad_rows(values)]
        return []

    def loss(self, values: Tensor) -> None:
        """Check the losses (n) of a micro-batch."""
        if self.found is None and not _is_finite(values):
            self.found = f"the loss of {self._describe_images(values)}; every layer's output is finite"

    def _check_layer(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.found is not None or not isinstance(output, Tensor) or _is_finite(output):
            return
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        side = "output" if all(_is_finite(value) for value in inputs) else "input"
        location = f"layer {name}" if name else "the model"
        self.found = f"the {side} of {location}, of {self._describe_images(output)}"

    def _check_gradient(self, name: str, parameter: Tensor) -> None:
        if self.found is None and parameter.grad is not None and not _is_finite(parameter.grad):
            layer, _, kind = name.rpartition(".")
            location = f"{kind} of layer {layer}" if layer else kind
            self.found = (
                f"the gradient of the {location}, in the backward pass of images {self._part.start} to "
                f"{self._part.stop - 1} of the global batch; every layer's output is finite"
            )

    def _describe_images(self, values: Tensor) -> str:
        if values.dim() == 0 or values.shape[0] != self._part.stop - self._part.start:
            return f"images {self._part.start} to {self._part.stop - 1} of the global batch"
        numbers = [self._part.start + index for index in _bad_rows(values)]
        suffix = f" and {len(numbers) - MAX_IMAGES_NAMED} more" if len(numbers) > MAX_IMAGES_NAMED else ""
        return f"image {', '.join(map(str, numbers[:MAX_IMAGES_NAMED]))}{suffix} of the global batch"


def weights_of(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(_network(module).named_parameters())


def bad_weights(weights: Mapping[str, Tensor]) -> list[str]:
    return [name for name, value in weights.items() if not _is_finite(value)]


def describe_weights(names: list[str]) -> str:
    suffix = f" and of {len(names) - 1} more" if len(names) > 1 else ""
    return f"the weights of {names[0]}{suffix}, before any layer"


def _network(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def _is_finite(values: Tensor) -> bool:
    return not values.is_floating_point() or bool(torch.isfinite(values.detach()).all())


def _bad_rows(values: Tensor) -> list[int]:
    rows = torch.isfinite(values.detach().reshape(values.shape[0], -1)).all(dim=1)
    return [index for index, good in enumerate(rows.tolist()) if not good]
