"""Every operator of the C kernels against float64, within computed bounds, on every instruction set.

Operators must also preserve the CPU state and the memory around their outputs. Programs run natively, with sanitizers,
with AMX tiles in C, and cross-built for Arm in qemu. Sanitizers do not detect memory accesses of AMX. The sanitized
program therefore always uses the tiles in C (kernels/test/host/emulated_tiles.c), which every CPU with AVX512_BF16
supports.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.engine.hardware import discover_machine
from tests.kernels.cases import Case, read_outputs, write_cases
from tests.kernels.isas import ALL, is_supported, sampled_if_supported
from tests.kernels.matrix_cases import matrix_cases
from tests.kernels.third_party_cases import third_party_cases
from tests.kernels.tile_cases import tile_cases
from tests.kernels.vector_cases import vector_cases

ROOT = Path(__file__).parents[2]
ARM_TOOLS = ("clang-19", "ld.lld-19", "aarch64-linux-gnu-objdump", "qemu-aarch64")
# Instruction set, threads, and the processor in qemu. With sme_fa64=off, instructions that are illegal in streaming
# mode fault. SVE outside streaming mode stays at qemu's default of 512 bits, so that the two vector lengths differ.
ARM_MACHINES = (
    ("ref", 1, "max"),
    ("neon", 3, "cortex-a76"),
    ("sve", 2, "max,sve256=on,sme=off"),
    ("svebf16", 1, "max,sve128=on,sme=off"),
    ("svebf16", 2, "max,sve256=on,sme=off"),
    ("svebf16", 3, "max,sve512=on,sme=off"),
    ("sme", 3, "max,sme128=on,sme_fa64=off"),
    ("sme", 2, "max,sme256=on,sme_fa64=off"),
    ("sme", 1, "max,sme512=on,sme_fa64=off"),
    ("sme", 2, "max,sme1024=on,sme_fa64=off"),
)
# Per matrix instruction of the loop over depth: loads and products of a step, and four loop instructions per 32 products
# of SME, five per 96 of SVE.
MAX_INSTRUCTIONS = {"sme f32": 2.13, "sme bf16": 2.13, "sme f64": 1.88, "svebf16 bf16": 1.47}

KINDS = ("native", "sanitized", "emulated", "arm")
NATIVE, SANITIZED, EMULATED, ARM = (pytest.mark.alternates("kernel programs", kind) for kind in KINDS)
pytestmark = [pytest.mark.slow, pytest.mark.unit("kernel-tests")]  # one worker at a time builds


@functools.cache
def cmake() -> list[str]:
    if importlib.util.find_spec("cmake"):
        return [sys.executable, "-m", "cmake"]
    return ["cmake"] if shutil.which("cmake") else []


@functools.cache
def build_target(kind: str, target: str = "run_cases", *, newest: str = "") -> Path:
    """Build run_cases, or the library, in build/kernel-tests, which later runs of the tests reuse.

    `newest` is the newest instruction set to build; all if empty.
    """
    settings = {
        "native": [],
        "sanitized": ["-DHCOPS_SANITIZE=address,undefined", "-DHCOPS_EMULATE_TILES=ON"],
        "emulated": ["-DHCOPS_EMULATE_TILES=ON"],
        "arm": [f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'kernels/test/aarch64.cmake'}"],
    }[kind]
    folder = ROOT / "build/kernel-tests" / f"{kind}{newest and '-'}{newest}"
    settings += [f"-DHCOPS_NEWEST_ISA={newest}"]
    for command in (["-S", str(ROOT / "kernels"), "-B", str(folder), "-DHCOPS_TEST=ON", *settings],
                    ["--build", str(folder), "--target", target, "--parallel", "2"]):  # fmt: skip
        done = subprocess.run([*cmake(), *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / (target if target == "run_cases" else f"{target}.so")


def native_program(kind: str, isa: str) -> Path:
    if not cmake() or not shutil.which("cc"):
        pytest.skip("no CMake or no C compiler (cc) to build the kernels with")
    if not is_supported(isa, emulates_tiles=kind != "native"):
        pytest.skip(f"this CPU does not run {isa}")
    program = build_target(kind, newest="" if isa == "amxfp32" else isa)  # amxfp32 is the newest
    isas = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    if isa not in isas:
        pytest.skip(f"this compiler has no {isa}, only {', '.join(isas)}")
    return program


def arm_program() -> Path:
    missing = [tool for tool in ARM_TOOLS if not shutil.which(tool)]
    if not Path("/usr/aarch64-linux-gnu/lib/libc.a").exists():
        missing.append("libc6-dev-arm64-cross")
    if missing or not cmake():
        pytest.skip(
            f"Arm kernels are cross-built and emulated; not installed: {', '.join(missing) or 'cmake'} (see .ci/run)"
        )
    return build_target("arm")


def quick_emulation(folder: Path) -> dict[str, str]:
    """Return variables that accelerate qemu-aarch64 on x86 (kernels/test/host/qemu_fma.c), if there is a compiler."""
    if "fma" not in discover_machine().flags or not shutil.which("cc"):
        return {}
    library, source = folder / "qemu_fma.so", ROOT / "kernels/test/host/qemu_fma.c"
    subprocess.run(["cc", "-O2", "-mfma", "-fPIC", "-shared", source, "-o", library], check=True)
    return {"LD_PRELOAD": str(library)}


@functools.cache
def all_cases(*, of_tiles: bool = True) -> list[Case]:
    """Return all cases. Tile cases are optional because they take a minute in qemu."""
    return [*matrix_cases(), *vector_cases(), *third_party_cases(), *(tile_cases() if of_tiles else [])]


def run(program: Path, isa: str, threads: int, folder: Path, emulator: tuple[str, ...] = ()) -> bytes:
    """Return the output of run_cases; three threads are two clusters."""
    cases, outputs = folder / "cases", folder / "outputs"
    write_cases(all_cases(of_tiles=not emulator), cases)
    command = [*emulator, str(program), str(cases), str(outputs), isa, str(threads), str((threads + 1) // 2)]
    environment = os.environ | (quick_emulation(folder) if emulator else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-6000:]}"
    return outputs.read_bytes()


def assert_right(outputs: bytes, *, of_tiles: bool = True) -> None:
    found = read_outputs(all_cases(of_tiles=of_tiles), outputs)
    assert not found, f"{len(found)} wrong:\n" + "\n".join(found[:20])


@NATIVE
@pytest.mark.parametrize("isa", sampled_if_supported(ALL))
def test_operators_equal_float64_for_any_number_of_threads(isa: str, tmp_path: Path) -> None:
    program = native_program("native", isa)
    outputs = run(program, isa, 1, tmp_path)
    assert_right(outputs)
    assert run(program, isa, 3, tmp_path) == outputs, "other bits with three threads than with one"


@EMULATED
def test_operators_equal_float64_on_emulated_tiles(tmp_path: Path) -> None:
    program = native_program("emulated", "amxfp32")
    outputs = run(program, "amxfp32", 1, tmp_path)
    assert_right(outputs)
    assert run(program, "amxfp32", 3, tmp_path) == outputs, "other bits with three threads than with one"
    if is_supported("amxfp32"):
        assert run(native_program("native", "amxfp32"), "amxfp32", 1, tmp_path) == outputs, (
            "other bits than the CPU's own tiles give"
        )


@SANITIZED
@pytest.mark.parametrize("isa", sampled_if_supported(ALL, emulates_tiles=True))
def test_operators_are_clean_under_sanitizers(isa: str, tmp_path: Path) -> None:
    assert_right(run(native_program("sanitized", isa), isa, 2, tmp_path))


@ARM
@pytest.mark.sampled
@pytest.mark.parametrize(("isa", "threads", "cpu"), ARM_MACHINES)
def test_operators_equal_float64_on_arm(isa: str, threads: int, cpu: str, tmp_path: Path) -> None:
    assert_right(run(arm_program(), isa, threads, tmp_path, ("qemu-aarch64", "-cpu", cpu)), of_tiles=False)


@ARM
@pytest.mark.parametrize("cpu", ["max,sme=off", "cortex-a76"])
def test_arm_cpu_without_sme_does_not_list_sme(cpu: str) -> None:
    listed = subprocess.run(["qemu-aarch64", "-cpu", cpu, arm_program()], check=True, capture_output=True, text=True)
    assert listed.stdout.split() == (["ref", "neon", "sve", "svebf16"] if cpu.startswith("max") else ["ref", "neon"])


@ARM
@pytest.mark.parametrize("bits", [128, 512])
def test_matrix_products_stay_within_the_instruction_limits(bits: int) -> None:
    script = ROOT / "kernels/test/instructions_per_product.py"
    command = [sys.executable, str(script), str(arm_program()), "--bits", str(bits)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counted = {
        kind: float(value) for kind, value in re.findall(r"^(\w+ \w+): ([\d.]+) instructions", printed, re.MULTILINE)
    }
    assert counted.keys() == MAX_INSTRUCTIONS.keys(), printed
    assert all(counted[kind] <= most for kind, most in MAX_INSTRUCTIONS.items()), printed


@NATIVE
def test_wrong_number_and_overwritten_canary_are_detected(tmp_path: Path) -> None:
    outputs = bytearray(run(native_program("native", "ref"), "ref", 1, tmp_path))
    outputs[8] |= 1  # the first case: bits of violations
    outputs[18] ^= 0x40  # the exponent of its only number
    first, second = read_outputs(all_cases(), bytes(outputs))
    assert "broke memory before an output" in first
    assert "1 of 1 are off" in second
