"""Matrix products by the Arm kernels on another CPU, cross-built once into `build/emulated` and executed by qemu.

Emulation verifies numbers but does not predict speed. Legend: M, K, N sizes of C (M, N) = A (M, K) B (K, N).
"""

import atexit
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dithc.bench.rooflines import Precision
from dithc.core.logging import get_logger, user_error
from dithc.engine.hardware import discover_machine

log = get_logger(__name__)

ROOT = Path(__file__).resolve().parents[3]
KERNELS, BUILD = ROOT / "kernels", ROOT / "build" / "emulated"
TOOLS = ("clang-19", "ld.lld-19", "aarch64-linux-gnu-objdump", "qemu-aarch64")
STATIC_LIBRARY = Path("/usr/aarch64-linux-gnu/lib/libc.a")
PROCESSOR = "max,sme512=on,sme_fa64=off"  # instructions that are illegal in streaming mode fault
THREADS = 1
# From kernels/test/run_cases.c and kernels/include/hcops.h.
F32, ABSENT, ARRAYS = 0, -1, 9
OPTIONS = (0, 0, 0, 0, 0, *[0] * 6)  # fp32 arithmetic, no added term, no epilogue, default blocking of the kernels


def skip_reason(dtype: Precision) -> str | None:
    """Return the reason why SME cannot be emulated here for a type, or None."""
    if dtype != "fp32":
        return "only products of fp32 are emulated"
    if not (KERNELS / "CMakeLists.txt").exists():
        return "the kernel sources are missing: use a checkout"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if not STATIC_LIBRARY.exists():
        missing.append("libc6-dev-arm64-cross")
    if not _cmake():
        missing.append("cmake")
    return f"not installed: {', '.join(missing)} (.ci/run lists the packages)" if missing else None


def describe() -> str:
    """Describe the emulated machine."""
    return f"dithc's SME kernels, emulated by qemu-aarch64 -cpu {PROCESSOR}"


@cache
def quick_emulation() -> dict[str, str]:
    """Return variables that accelerate qemu-aarch64 on x86 (kernels/test/host/qemu_fma.c), if there is a compiler."""
    compiler = shutil.which("cc")
    if "fma" not in discover_machine().flags or compiler is None:
        return {}
    BUILD.mkdir(parents=True, exist_ok=True)
    library, temporary = BUILD / "qemu_fma.so", BUILD / f"qemu_fma.{os.getpid()}.so"
    source = str(KERNELS / "test" / "host" / "qemu_fma.c")
    arguments = [compiler, "-O2", "-mfma", "-fPIC", "-shared", source, "-o", str(temporary)]
    completed = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if completed.returncode:
        log.info("running qemu without native fma: %s", completed.stderr.strip().splitlines()[-1:])
        return {}
    temporary.replace(library)  # atomically, because other processes may do the same
    return {"LD_PRELOAD": str(library)}


def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return C (M, N) of A (M, K), B (K, N) and an optional bias (N), fp32, any strides."""
    (m, k), n = a.shape, b.shape[1]
    a, b = a.detach().float().contiguous(), b.detach().float().contiguous()
    out = torch.zeros(m, n)
    arrays: list[tuple[Tensor | None, int]] = [(a, 0), (b, 0), (out, 1), (None, 0), (bias, 0)]
    arrays += [(None, 0)] * (ARRAYS - len(arrays))
    ints = (m, n, k, k, 1, n, 1, n, *OPTIONS)
    parts = [b"gemm".ljust(32, b"\0"), struct.pack(f"<3q{len(ints)}q", len(ints), 0, len(arrays), *ints)]
    for array, is_output in arrays:
        parts.append(struct.pack("<3q", F32, ABSENT if array is None else array.numel(), is_output))
        if array is not None:
            parts.append(_pad(array.detach().float().contiguous().numpy().tobytes()))
    answer = _exchange(b"".join(parts), 16 + len(_pad(bytes(out.nbytes))))
    status, broken = struct.unpack("<2q", answer[:16])
    if status or broken:
        text = f"status {status} with {broken} wrong bytes for a product of {m} x {k} x {n}"
        raise RuntimeError(f"the emulated kernel returned {text}")
    return torch.frombuffer(bytearray(answer[16 : 16 + out.nbytes]), dtype=torch.float32).reshape(m, n)


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)


def _exchange(request: bytes, size: int) -> bytes:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(struct.pack("<q", len(request)) + request)
        server.stdin.flush()
        answer = server.stdout.read(size)
    except BrokenPipeError:
        answer = b""
    if len(answer) < size:
        _server.cache_clear()
        status = server.wait()
        got = f"exit status {status} of {' '.join(map(str, server.args))}"  # type: ignore[arg-type]
        fix = f"remove {BUILD} and restart; see the output of the program above"
        raise user_error("the emulated kernels ended", got=got, expected="an answer to each product", fix=fix)
    return answer


@cache
def _server() -> subprocess.Popen[bytes]:
    command = ["qemu-aarch64", "-cpu", PROCESSOR, str(_build_program()), "serve", "sme", str(THREADS)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | quick_emulation()
    )
    atexit.register(server.communicate, timeout=10)
    return server


def _build_program() -> Path:
    log.info("building the Arm kernels in %s, for this and later runs", BUILD)
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={KERNELS / 'test' / 'aarch64.cmake'}"
    for arguments in (
        ["-S", str(KERNELS), "-B", str(BUILD), "-DHCOPS_TEST=ON", toolchain],
        ["--build", str(BUILD), "--target", "run_cases", "--parallel", "2"],
    ):
        completed = subprocess.run([*_cmake(), *arguments], capture_output=True, text=True, check=False)
        if completed.returncode:
            last = (completed.stdout + completed.stderr).strip().splitlines()[-1:]
            got = f"{' '.join(arguments)}: {' '.join(last)}"
            fix = "install the packages listed in .ci/run, or remove this platform"
            raise user_error("the Arm kernels cannot be built", got=got, expected="a program for 64-bit Arm", fix=fix)
    return BUILD / "run_cases"


@cache
def _cmake() -> tuple[str, ...]:
    if importlib.util.find_spec("cmake"):
        return sys.executable, "-m", "cmake"
    return ("cmake",) if shutil.which("cmake") else ()
