"""Choice between the active back end and the reference, by the inputs of a call."""

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from dithc.engine.hcops.backend import backend_of, log_once
from dithc.engine.hcops.checks import TYPES, argument_error, array
from dithc.engine.hcops.kernel_registry import FALLBACK

PLAIN = (Tensor, Parameter)


def uses_reference(op: str, **tensors: Tensor | None) -> bool:
    """Return whether plain torch computes this call; raise UserError for integer or complex tensors."""
    backend = backend_of(op)
    if backend == FALLBACK:
        return True
    reason = unsupported_reason(op, tensors)
    if reason is None:
        return False
    if not torch.compiler.is_compiling():
        log_once(op, "operator %s: %s; the reference serves such inputs instead of back end %s", op, reason, backend)
    return True


def compute_type(op: str, x: Tensor, **weights: Tensor | None) -> torch.dtype:
    """Return autocast's type, else the common type of the operands; raise UserError if they differ."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    for name, weight in weights.items():
        if weight is not None and weight.dtype is not x.dtype:
            fix = "convert one of them, or use torch.autocast('cpu', dtype=torch.bfloat16)"
            raise argument_error(op, name, got=weight.dtype, expected=f"{x.dtype}, as x", fix=fix)
    return x.dtype


def dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def rows_dense(tensor: Tensor) -> Tensor:
    """Return (N, D) with dense rows. Rows may be apart, as in a chunk of (N, 6D)."""
    return tensor if tensor.dim() == 2 and tensor.stride(1) == 1 else tensor.contiguous()


def unsupported_reason(op: str, tensors: dict[str, Tensor | None]) -> str | None:
    """Return why the fast back ends do not support these inputs, or None. Cheap checks come first."""
    compiling = torch.compiler.is_compiling()
    on_meta: bool | None = None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            got, fix = type(tensor).__name__, "convert it with torch.as_tensor()"
            raise argument_error(op, name, got=got, expected="a torch.Tensor", fix=fix)
        if tensor.dtype not in TYPES:
            if not tensor.is_floating_point():
                array(op, name, tensor)  # raises the error with the complete message
            return f"inputs of {tensor.dtype}"
        if not tensor.is_cpu and not tensor.is_meta:
            return f"inputs on {tensor.device}"
        if on_meta is not None and tensor.is_meta != on_meta:
            expected = f"a tensor {'without' if on_meta else 'with'} memory, as the arguments before it"
            fix = "move all arguments to one device"
            raise argument_error(op, name, got=f"a tensor on {tensor.device}", expected=expected, fix=fix)
        on_meta = tensor.is_meta
        if tensor.layout is not torch.strided:
            return f"inputs of layout {tensor.layout}"
        if not compiling and type(tensor) not in PLAIN and not torch._C._len_torch_dispatch_stack():
            return f"inputs of class {type(tensor).__name__}"
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") not in TYPES:
        return f"autocast to {torch.get_autocast_dtype('cpu')}"
    if not compiling and torch._C._are_functorch_transforms_active():
        return "a transformation of torch.func"
    if not compiling and forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return None
