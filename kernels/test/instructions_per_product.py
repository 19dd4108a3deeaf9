"""Count the executed instructions per matrix instruction of SME (FMOPA, BFMOPA) and SVE (BFMMLA), under qemu-aarch64.

    python kernels/test/instructions_per_product.py build/arm/run_cases [--bits 512]

qemu logs every instruction of a product, and objdump lists the instruction at each address. Only functions with matrix
instructions count. The loop over depth is the difference between products of two depths; a complete block also clears,
stores and enters. The ideal with single-vector loads is 2.00 for SME in fp32 and bf16 (2 x 2 tiles), 1.75 in fp64
(4 x 2), and 1.42 for BFMMLA (4 x 6 sums).
"""

import argparse
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

KINDS = {"f32": (0, 4), "bf16": (1, 2), "f64": (2, 8)}  # hc_dtype and bytes of an element
KERNELS = {"sme": ("f32", "bf16", "f64"), "svebf16": ("bf16",)}
OPTIONS = {"sme": "max,sme{bits}=on", "svebf16": "max,sve{bits}=on,sme=off"}  # of qemu's CPU
PRODUCT = re.compile(r"\b(b?fmopa|bfmmla)\b")
# Lines of objdump: start of a function, and an instruction.
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+[0-9a-f]{8}\s+(.*)$")
# A line of qemu's log: Trace 0: <host address> [<flags>/<address>/...
EXECUTED = re.compile(r"^Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/")


def functions_with_products(program: Path, objdump: str) -> dict[int, tuple[int, str]]:
    """Return the function's number and the instruction's text by address."""
    text = subprocess.run([objdump, "-d", str(program)], check=True, capture_output=True, text=True).stdout
    functions: list[dict[int, str]] = []
    for line in text.splitlines():
        if FUNCTION.match(line):
            functions.append({})
        elif match := INSTRUCTION.match(line):
            functions[-1][int(match[1], 16)] = match[2]
    with_products = [function for function in functions if any(PRODUCT.search(text) for text in function.values())]
    return {address: (i, text) for i, function in enumerate(with_products) for address, text in function.items()}


def write_product(path: Path, kind: str, rows: int, depth: int) -> None:
    """Write a case of run_cases: a rows x rows product of zeros."""
    number, size = KINDS[kind]
    compute, out, out_size = number, 2 if kind == "f64" else 0, 8 if kind == "f64" else 4
    cuts = [1, 0, 0]  # explicit cuts force packing
    ints = [rows, rows, depth, depth, 1, 1, depth, rows, compute, *[0] * 7, *cuts]
    arrays = [(number, rows * depth, size, 0), (number, rows * depth, size, 0), (out, rows * rows, out_size, 1)]
    data = b"HCCASES1" + struct.pack("<q", 1) + b"gemm".ljust(32, b"\0")
    data += struct.pack("<3q", len(ints), 0, 9) + struct.pack(f"<{len(ints)}q", *ints)
    for dtype, count, bytes_each, is_output in arrays:
        data += struct.pack("<3q", dtype, count, is_output) + bytes(-(-count * bytes_each // 8) * 8)
    data += struct.pack("<3q", 0, -1, 0) * 6
    path.write_bytes(data)


def single_step() -> str:
    """Return the option for one instruction per log line, which qemu 8.1 renamed."""
    text = subprocess.run(["qemu-aarch64", "--help"], capture_output=True, text=True).stdout
    return "-one-insn-per-tb" if "-one-insn-per-tb" in text else "-singlestep"


def measure(
    program: Path, known: dict[int, tuple[int, str]], isa: str, kind: str, bits: int, depth: int
) -> tuple[int, int]:
    """Return the instructions and matrix instructions of one product in the function with most matrix instructions."""
    with tempfile.TemporaryDirectory() as folder:
        cases, log = Path(folder, "cases"), Path(folder, "log")
        # Complete tiles: 2 vectors squared with SME, 8 rows of 3 vectors with SVE.
        write_product(cases, kind, 2 * bits // 32 if isa == "sme" else max(24, 3 * bits // 32), depth)
        cpu = OPTIONS[isa].format(bits=bits)
        emulator = ["qemu-aarch64", "-cpu", cpu, single_step(), "-d", "exec,nochain", "-D", str(log)]
        subprocess.run([*emulator, str(program), str(cases), str(Path(folder, "out")), isa, "1"], check=True)
        instructions, products = Counter[int](), Counter[int]()
        with log.open() as lines:
            for line in lines:
                match = EXECUTED.match(line)
                if match and (found := known.get(int(match[1], 16))):
                    instructions[found[0]] += 1
                    products[found[0]] += bool(PRODUCT.search(found[1]))
    function, num_products = products.most_common(1)[0]
    # run_cases calls each SME product twice: the second time with a dormant ZA.
    return instructions[function], num_products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="run_cases, cross-built with kernels/test/aarch64.cmake")
    parser.add_argument("--bits", type=int, default=512, help="vector length")
    parser.add_argument(
        "--objdump", default="aarch64-linux-gnu-objdump", help="objdump with SME: binutils 2.38 or LLVM"
    )
    arguments = parser.parse_args()
    known = functions_with_products(arguments.program, arguments.objdump)
    for isa, kind in ((isa, kind) for isa, kinds in KERNELS.items() for kind in kinds):
        half, half_products = measure(arguments.program, known, isa, kind, arguments.bits, 128)
        full, full_products = measure(arguments.program, known, isa, kind, arguments.bits, 256)
        loop, block = (full - half) / (full_products - half_products), full / full_products
        sys.stdout.write(
            f"{isa} {kind}: {loop:.3f} instructions per matrix instruction in the loop over depth, "
            f"{block:.3f} in the whole block at depth 256, {arguments.bits} bits\n"
        )


if __name__ == "__main__":
    main()
