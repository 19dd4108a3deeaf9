"""Choosing a back end: by name, per operator, undone at the end of a `with`."""

import pytest
import torch

from dithc import hcops
from dithc.hcops.table import Kernel, choose
from dithc.log import UserError


def _table() -> tuple[Kernel, ...]:
    return (
        Kernel("linear", "reference", torch.add, "plain"),
        Kernel("silu", "reference", torch.sub, "plain"),
        Kernel("linear", "fast", torch.mul, "measured faster"),
    )


def test_unknown_back_end_is_refused_with_the_known_names() -> None:
    with pytest.raises(UserError, match=r"'cuda'(.|\n)*reference"):
        hcops.use("cuda")


def test_failed_use_leaves_the_choice_as_it_was() -> None:
    before = hcops.describe()
    with pytest.raises(UserError):
        hcops.use("nothing")
    assert hcops.describe() == before


def test_operator_missing_in_a_back_end_falls_to_the_reference_and_says_so() -> None:
    chosen = choose("fast", kernels=_table())
    assert chosen["linear"].kernel.backend == "fast"
    assert chosen["silu"].kernel.backend == "reference"
    assert "fast has no kernel for silu" in chosen["silu"].why


def test_describe_names_a_kernel_and_a_reason_for_each_operator() -> None:
    rows = hcops.describe()
    assert [row["op"] for row in rows] == ["linear", "linear_gelu", "adaln", "gate_residual", "attention", "silu"]
    assert all(row["backend"] == "reference" and row["kernel"] and row["why"] for row in rows)


def test_use_as_context_restores_the_previous_choice() -> None:
    before = hcops.describe()
    with hcops.use("reference"):
        assert hcops.describe()[0]["backend"] == "reference"
    assert hcops.describe() == before


def test_dispatch_leaves_no_break_in_a_compiled_graph() -> None:
    compiled = torch.compile(lambda x: hcops.silu(hcops.silu(x)), backend="eager", fullgraph=True)
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), hcops.silu(hcops.silu(x)))
