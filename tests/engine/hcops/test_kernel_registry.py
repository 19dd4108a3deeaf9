"""Selection of a back end: by name, per operator, and restored at the end of a `with` block."""

from fnmatch import fnmatch

import pytest

from dithc.core.logging import UserError
from dithc.engine import hcops, native
from dithc.engine.hcops import backend as active
from dithc.engine.hcops import kernel_registry
from dithc.engine.hcops.autograd import OPERATORS
from dithc.engine.hcops.kernel_registry import FAST, default, obstacle, raw_of
from dithc.engine.hcops.spec import SPECS


def test_backend_serves_selected_operators_and_unknown_names_raise() -> None:
    before = hcops.describe_kernels()
    with hcops.use("reference"):
        with hcops.use("numba", ops=("linear", "silu")):
            served = {row["op"]: row["backend"] for row in hcops.describe_kernels()}
            assert {op for op, backend in served.items() if backend == "numba"} == {"linear", "silu"}
        assert {row["backend"] for row in hcops.describe_kernels()} == {"reference"}
        with pytest.raises(UserError, match="magic"):
            hcops.use("numba", ops=("linear", "magic"))
        with pytest.raises(UserError, match=r"'cuda'(.|\n)*reference"):
            hcops.use("cuda")
        assert {row["backend"] for row in hcops.describe_kernels()} == {"reference"}
    assert hcops.describe_kernels() == before


@pytest.mark.parametrize("backend", ["reference", "numba", "c"])
def test_description_lists_kernel_and_reason_for_each_operator(backend, use_backend) -> None:
    use_backend(backend)
    rows = hcops.describe_kernels()
    assert [row["op"] for row in rows] == [spec.name for spec in SPECS]
    assert all(row["backend"] == backend and row["kernel"] and row["reason"] for row in rows)


@pytest.mark.parametrize("setting", ["", "ref"])
def test_c_kernel_reason_contains_instruction_set_and_tuning_file(setting, use_backend, monkeypatch) -> None:
    use_backend("c")
    monkeypatch.setenv("HCOPS_ISA", setting)
    monkeypatch.setattr(active, "summary", lambda: "tuning file somewhere")
    native.isa_choice.cache_clear()
    rows = {row["op"]: row for row in hcops.describe_kernels()}
    expected = "ref, set by HCOPS_ISA" if setting else f"{native.instruction_set()}, the fastest of this CPU"
    native.isa_choice.cache_clear()
    assert expected in rows["linear"]["reason"]
    assert "tuning file somewhere" in rows["linear"]["reason"]
    assert all("map_backward" in rows[op]["kernel"] for op in ("exp", "tanh", "gelu"))


def test_every_spec_names_existing_kernels_of_the_c_library() -> None:
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    names = [name for name, _ in native.kernels()]
    lacking = [
        spec.name for spec in SPECS if spec.parts and not any(fnmatch(n, part) for n in names for part in spec.parts)
    ]
    assert lacking == []


@pytest.mark.parametrize("backend", FAST)
def test_every_backend_provides_raw_kernels_of_all_specs(backend) -> None:
    if reason := obstacle(backend):
        pytest.skip(reason)
    names = [f"{spec.name}_{kind}" for spec in SPECS for kind in ("forward", *["backward"] * bool(spec.backward))]
    assert all(callable(raw_of(backend, name)) for name in names)
    assert set(OPERATORS) == {spec.name for spec in SPECS} - {"adamw", "sum_of_squares"}


def test_default_is_the_fastest_available_backend_with_reason(monkeypatch) -> None:
    monkeypatch.setattr(kernel_registry, "obstacle", lambda backend: None)
    assert default()[0] == "c"
    monkeypatch.setattr(kernel_registry, "obstacle", lambda backend: "no library" if backend == "c" else None)
    assert default() == ("numba", "the fastest back end that works here; not c: no library")
    monkeypatch.setattr(kernel_registry, "obstacle", lambda backend: "missing")
    assert default() == ("reference", "not c: missing; not numba: missing")


def test_unavailable_backend_is_rejected_with_reason(monkeypatch) -> None:
    monkeypatch.setattr(active, "obstacle", lambda backend: "no library")
    with pytest.raises(UserError, match="no library"):
        hcops.use("c")
