"""Choice of the instruction set: measured rates, the stored choice, pinned sets, and equal choices of ranks."""

import ctypes
import json
from types import SimpleNamespace

import pytest
import torch

from dithc.engine import native
from dithc.engine.comm import session
from dithc.engine.native import instruction_sets, loading

KERNELS = {
    "avx512": {"gemm_f32": "avx512", "gemm_bf16": "avx512"},
    "avx512bf16": {"gemm_f32": "avx512", "gemm_bf16": "avx512bf16"},
    "amx": {"gemm_f32": "avx512", "gemm_bf16": "amx"},
    "amxfp32": {"gemm_f32": "avx512", "gemm_f32_split": "amxfp32", "gemm_bf16": "amx"},
}


@pytest.fixture
def unmeasured(monkeypatch, tmp_path):
    """Return the folder of an empty tuning, for a process without HCOPS_ISA and without a choice."""
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    monkeypatch.delenv("HCOPS_ISA", raising=False)
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path))
    monkeypatch.setattr(instruction_sets, "_pinned", [])
    monkeypatch.setattr(instruction_sets, "_common", [])
    monkeypatch.setattr(instruction_sets, "_measured", {})
    caches = (instruction_sets.isa_choice, instruction_sets.check_rates)
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def amx_machine(unmeasured, monkeypatch):
    """Return the rates of a machine whose kernels are those of `KERNELS`; `measure` returns these rates."""
    rates = {"fp32": {"avx512": 300.0, "amxfp32": 500.0}, "bf16": {"avx512": 250.0, "avx512bf16": 170.0, "amx": 3000.0}}
    measured = []

    def measure(kernels_of, *, rounds=0):
        measured.append(sum(map(len, kernels_of.values())))
        return {dtype: {isa: rates[dtype][isa] for isa in isas} for dtype, isas in kernels_of.items()}

    monkeypatch.setattr(instruction_sets, "measure", measure)
    monkeypatch.setattr(instruction_sets, "kernels_of", lambda isa: list(KERNELS[isa].items()))
    monkeypatch.setattr(instruction_sets, "supported_isas", lambda: ["ref", "avx2", *KERNELS])
    monkeypatch.setattr(instruction_sets, "isa_name", lambda name: name or "amxfp32")
    return rates, measured


def next_process():
    instruction_sets.isa_choice.cache_clear()
    instruction_sets.check_rates.cache_clear()
    instruction_sets._measured.clear()


@pytest.mark.parametrize(
    ("split", "bf16", "expected"),
    [(500, 3000, "amxfp32"), (200, 3000, "amx"), (200, 160, "avx512"), (301, 160, "avx512")],
)
def test_set_with_the_fastest_kernels_of_both_types_is_chosen(split, bf16, expected, amx_machine):
    rates, _ = amx_machine
    rates["fp32"]["amxfp32"], rates["bf16"]["amx"] = split, bf16
    assert native.instruction_set() == expected


def test_later_process_uses_the_stored_choice(amx_machine):
    rates, measured = amx_machine
    assert native.instruction_set() == "amxfp32"
    rates["fp32"]["amxfp32"] = 1.0
    next_process()
    assert native.instruction_set() == "amxfp32"
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("split", "expected", "measurements"),
    [(380.0, "amxfp32", 2), (290.0, "amxfp32", 3), (100.0, "amx", 3)],
    ids=["rate within 30%", "no gain of 10%", "slower"],
)
def test_moved_rate_is_measured_again(split, expected, measurements, amx_machine, caplog):
    rates, measured = amx_machine
    assert native.instruction_set() == "amxfp32"
    rates["fp32"]["amxfp32"] = split
    next_process()
    with caplog.at_level("WARNING"):
        instruction_sets.check_rates()
    assert native.instruction_set() == expected
    assert len(measured) == measurements
    assert ("HCOPS_ISA=amxfp32" in caplog.text) == (expected != "amxfp32")
    next_process()
    assert native.instruction_set() == expected


def test_other_number_of_threads_changes_the_choice_only_for_a_gain(amx_machine, monkeypatch):
    rates, measured = amx_machine
    assert native.instruction_set() == "amxfp32"
    for split, threads, expected in ((290.0, 3, "amxfp32"), (150.0, 5, "amx"), (500.0, 3, "amx")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        rates["fp32"]["amxfp32"] = split
        next_process()
        instruction_sets.check_rates()
        assert native.instruction_set() == expected
    assert measured == [5, 5, 5, 2], "the set amx has unchanged rates on 3 threads"


def test_process_that_measured_does_not_check_its_own_rates(amx_machine):
    _, measured = amx_machine
    native.instruction_set()
    instruction_sets.check_rates()
    assert len(measured) == 1


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 1, "key": 3}', "[]", "\x00"])
def test_damaged_choice_is_measured_again(content, amx_machine, unmeasured):
    _, measured = amx_machine
    native.instruction_set()
    (path,) = unmeasured.glob("*/*.json")
    path.write_text(content)
    next_process()
    assert native.instruction_set() == "amxfp32"
    assert len(measured) == 2
    assert json.loads(path.read_text())["isa"] == "amxfp32"


def test_choice_of_a_read_only_folder_is_made_without_storing(amx_machine, unmeasured, monkeypatch, caplog):
    (unmeasured / "file").write_text("")
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(unmeasured / "file" / "below"))
    assert native.instruction_set() == "amxfp32"
    assert "not stored" in caplog.text


def test_pinned_set_is_used_unless_a_rank_lacks_it(amx_machine, monkeypatch):
    instruction_sets.pin("avx512", "a checkpoint", of_all_ranks=("ref", "avx512", "amx"))
    assert native.instruction_set() == "avx512"
    instruction_sets.pin("amxfp32", "a checkpoint")
    assert native.instruction_set() == "avx512"
    instruction_sets.pin("amx", "a checkpoint")
    assert native.isa_choice() == ("amx", "a checkpoint", {})
    monkeypatch.setenv("HCOPS_ISA", "avx512bf16")
    instruction_sets.isa_choice.cache_clear()
    instruction_sets.pin("avx512", "a checkpoint")
    assert native.instruction_set() == "avx512bf16"


def test_measured_rates_are_positive_and_stored(unmeasured):
    if len(instruction_sets._candidates()) < 2:
        pytest.skip("this CPU has no two candidates")
    choice = native.isa_choice()
    assert choice.isa in loading.supported_isas()
    assert all(rate > 0 for by_isa in choice.rates.values() for rate in by_isa.values())
    (path,) = unmeasured.glob("*/*.json")
    assert json.loads(path.read_text())["rates"] == {str(torch.get_num_threads()): choice.rates}


def test_measured_products_are_correct(unmeasured):
    """A wrong stride would measure another product."""
    for dtype in instruction_sets.DTYPES.values():
        for arguments, (a, b, out) in instruction_sets._products(64, dtype):
            native.loaded().hc_gemm(native.context(isa="ref"), ctypes.byref(arguments))
            forward = out.shape == (64, instruction_sets.FEATURES)
            exact = a.double() @ b.double().t() if forward else a.double().t() @ b.double()
            torch.testing.assert_close(out.double(), exact, rtol=1e-2, atol=1e-2 * float(exact.abs().max()))


@pytest.mark.parametrize(
    ("supported", "chosen", "expected"),
    [
        ([["ref", "avx512", "amx"], ["ref", "avx512"]], "amx", "avx512"),
        ([["ref", "avx512", "amx"], ["ref", "avx512", "amx"]], "avx512", "avx512"),
        ([["ref", "avx512"], ["ref", "neon"]], "avx512", "ref"),
        ([["ref", "avx512"], []], "avx512", "amxfp32"),
    ],
    ids=["a rank lacks it", "choice of rank 0", "other family", "a rank has no kernels"],
)
def test_ranks_agree_on_a_set_that_all_support(supported, chosen, expected, amx_machine):
    group = SimpleNamespace(
        rank=1, size=2, gather_objects=lambda value: supported, broadcast_object=lambda value: chosen
    )
    session._agree_on_kernels(group)
    assert native.instruction_set() == expected
