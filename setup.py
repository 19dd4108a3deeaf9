"""Builds the C kernels as an optional library; everything else about the package stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(str(path) for path in Path("kernels").rglob("*.c"))
HEADERS = sorted(str(path) for path in Path("kernels").rglob("*.h"))

# A plain shared object, loaded through ctypes by dithc/hcops/native.py. Optional: without a C compiler the package
# installs all the same, runs on PyTorch's own operators, and `dithc doctor` says so.
kernels = Extension(
    name="dithc.hcops._kernels",
    sources=SOURCES,
    depends=HEADERS,
    include_dirs=["kernels/include", "kernels"],
    extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
    optional=True,
)

setup(ext_modules=[kernels])
