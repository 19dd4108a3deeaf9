"""ctypes declarations equal the header: names, arguments, and the layout of structures."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dithc.engine.native import signatures
from dithc.engine.native.loading import ABI_VERSION

ROOT = Path(__file__).parents[3]
HEADER = ROOT / "kernels/include/hcops.h"
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
FUNCTIONS = {
    name: (result.strip(), arguments)
    for result, name, arguments in re.findall(r"^([a-z][\w \*]*?)\b(hc_\w+)\(([^)]*)\);", TEXT, flags=re.MULTILINE)
}
STRUCTURES = {
    "hc_openmp": signatures.OpenMP,
    "hc_machine": signatures.Machine,
    "hc_gemm_arguments": signatures.GemmArguments,
    "hc_heads": signatures.Heads,
    "hc_attention_arguments": signatures.AttentionArguments,
    "hc_adamw_settings": signatures.AdamwSettings,
    "hc_pool_options": signatures.PoolOptions,
    "hc_pool_state": signatures.PoolState,
    "hc_copy_request": signatures.CopyRequest,
    "hc_copy_counters": signatures.CopyCounters,
}
EPILOGUE = """bias bias_type before_type gelu gelu_gradient_at gate gate_type gate_stride rows_per_gate residual
    residual_type"""
# Fields of the header that correspond to the flat fields of GemmArguments.
INNER = {
    **{
        f"{m}_{field}": f"{prefix}.{field}"
        for m, prefix in (("a", "a"), ("b", "b"), ("c", "out_c"))
        for field in ("data", "row_stride", "column_stride")
    },
    "a_type": "a.dtype",
    "b_type": "b.dtype",
    "c_type": "out_c.dtype",
    "row_sum_a": "out_row_sum_a",
    "before": "epilogue.out_before",
    **{name: f"epilogue.{name}" for name in EPILOGUE.split()},
    **{
        name: f"blocking.{name}" for name in ["mc", "nc", "kc", "row_cuts", "column_cuts", "num_threads", "cluster_cut"]
    },
}


NUMBERS = {"int": ctypes.c_int, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32, "float": ctypes.c_float,
           "double": ctypes.c_double}  # fmt: skip


def kind(argument: str) -> Any:
    """Return the ctypes number that an argument of the header requires, or "pointer"."""
    return "pointer" if "*" in argument else NUMBERS.get(argument.split()[-2], "pointer")  # hc_callback is one


def kind_of(declared: Any) -> Any:
    return declared if declared in NUMBERS.values() else "pointer"


def test_declared_functions_match_the_header():
    assert set(FUNCTIONS) == {*signatures.STATUS_FUNCTIONS, *signatures.OTHER_FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_argument_types_match_the_header(name):
    result, arguments = FUNCTIONS[name]
    expected = [] if arguments.strip() == "void" else [kind(" ".join(part.split())) for part in arguments.split(",")]
    if name in signatures.STATUS_FUNCTIONS:
        declared, expected_result = signatures.STATUS_FUNCTIONS[name], "int"
    else:
        (returned, *declared) = signatures.OTHER_FUNCTIONS[name]
        expected_result = "void" if returned is None else "int" if returned is ctypes.c_int else "pointer"
    assert [kind_of(declaration) for declaration in declared] == expected
    assert ("pointer" if "*" in result else result.split()[-1]) == expected_result


def test_abi_version_matches_the_header():
    assert re.search(r"#define HC_ABI_VERSION (\d+)", TEXT).group(1) == str(ABI_VERSION)


def test_structure_layout_matches_the_compiler(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    lines = []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in structure._fields_:
            if field != "c_padding":
                inner = INNER.get(field, field) if structure is signatures.GemmArguments else field
                lines.append(f'printf("{name} {field} %zu\\n", offsetof({name}, {inner}));')
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include <stddef.h>\n#include "hcops.h"\nint main(void) {'
        + "\n".join(lines)
        + "return 0; }\n"
    )
    subprocess.run([compiler, f"-I{HEADER.parent}", str(source), "-o", str(tmp_path / "layout")], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        name, *field, number = line.split()
        structure = STRUCTURES[name]
        declared = getattr(structure, field[0]).offset if field else ctypes.sizeof(structure)
        assert declared == int(number), line
