"""Build of the optional native parts: the C kernels and torch's allocator. pyproject.toml defines the rest of the package."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
KERNELS = ROOT / "kernels"
KERNELS_LIBRARY = "dithc.engine.native._kernels"
SEAL = b"\ndithc SHA-256: "  # dithc/engine/native/loading.py reads it
# Without a number, make compiles all files simultaneously, which needs several GiB of memory.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PARALLEL = ("--parallel", str(CORES))


PROJECT = ("Snakefile", "workflow", "config", "profiles")  # `dithc init` copies them from an installed wheel


class BuildWithProject(build_py):
    """Build that copies the workflow, configurations and profiles into the package of a wheel."""

    def run(self) -> None:
        """Copy the Python files, then the project files unless the installation is editable."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "dithc/project")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in PROJECT:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, target / name)


class BuildOptional(build_ext):
    """Build of the optional native parts. Parts that fail to build are skipped with a note; `dithc doctor` lists them.

    Both are plain shared objects, loaded through ctypes.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def run(self) -> None:
        """Build the libraries, then append a digest to each, or store the reason for its absence."""
        self.causes: dict[str, str] = {}
        in_place = self.inplace
        super().run()
        for ext in self.extensions:
            name = self.get_ext_filename(ext.name)
            for folder in {self.build_lib, "." if in_place else self.build_lib}:
                finish(Path(folder, name), cause=self.causes.get(ext.name))

    def build_extension(self, ext: Extension) -> None:
        try:
            if ext.name == KERNELS_LIBRARY:
                self.build_kernels(ext)
            else:
                super().build_extension(ext)  # torch's allocator: a plain C++ extension, and optional
        except Exception as error:
            self.causes[ext.name] = f"its build failed ({error})"
            raise

    def build_kernels(self, ext: Extension) -> None:
        """Configure and build kernels/, and copy the library into dithc/engine/native. Without it, dithc uses Numba."""
        build = Path(self.build_temp).resolve() / "kernels"
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        cmake = [sys.executable, "-m", "cmake"]
        try:
            subprocess.run([*cmake, "-S", str(KERNELS), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"], check=True)
            subprocess.run([*cmake, "--build", str(build), *PARALLEL, "--target", "_kernels"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            named = os.environ.get("CC")
            has_compiler = any(map(shutil.which, [named.split()[0]] if named else ["cc", "gcc", "clang"]))
            self.causes[ext.name] = (
                "its build failed; `pip install -v` prints why" if has_compiler else "there was no C compiler"
            )
            sys.stderr.write(
                f"note: the C kernels were not built ({error}); dithc uses its Numba operators. "
                "fix: apt-get install build-essential (or another C compiler), then install again\n"
            )
            return
        self.copy_file(str(build / "_kernels.so"), str(target))


def finish(library: Path, *, cause: str | None) -> None:
    """Append the SHA-256 to a library, so that a damaged library is not loaded; or replace it by a text file with the cause."""
    why = library.with_suffix(".txt")
    if cause is not None:
        library.unlink(missing_ok=True)  # a library of an earlier version would be loaded
        why.parent.mkdir(parents=True, exist_ok=True)
        why.write_text(f"{cause}\n")
    elif library.exists() and SEAL not in (content := library.read_bytes()):
        why.unlink(missing_ok=True)
        new = library.with_suffix(".new")
        new.write_bytes(content + SEAL + hashlib.sha256(content).hexdigest().encode())
        shutil.copymode(library, new)
        new.replace(library)  # running processes keep the old file


def allocator_of_torch() -> list[Extension]:
    """Return the extension for the installed torch, named after its version; empty under build isolation, which hides torch.

    torch is not imported, because only its headers and its version are needed.
    """
    found = find_spec("torch")
    if found is None or not found.submodule_search_locations:
        sys.stderr.write(
            "note: torch was not found, so its allocator was not built; torch's own tensors stay out of the pools. "
            "fix: install torch, then dithc with --no-build-isolation\n"
        )
        return []
    torch = Path(found.submodule_search_locations[0])
    number = "_".join(re.findall(r"\d+", version("torch"))[:3])  # 2.13.0+cpu: 2_13_0
    return [
        Extension(
            f"dithc.engine.memory._torch_allocator_{number}",
            sources=["dithc/engine/memory/torch_allocator.cpp"],
            language="c++",
            include_dirs=[str(torch / "include")],
            library_dirs=[str(torch / "lib")],
            libraries=["c10"],
            extra_compile_args=["-std=c++20", "-fvisibility=hidden"],
            optional=True,
        )
    ]


setup(
    ext_modules=[Extension(KERNELS_LIBRARY, sources=[], optional=True), *allocator_of_torch()],
    cmdclass={"build_ext": BuildOptional, "build_py": BuildWithProject},
)
