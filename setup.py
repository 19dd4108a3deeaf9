"""Builds the C kernels with CMake as an optional library; everything else about the package stands in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path(__file__).parent.resolve() / "kernels"


class BuildWithCMake(build_ext):
    """Configures and builds kernels/ and puts the library beside dithc/native.

    The library is a plain shared object, loaded through ctypes. It is optional: where there is no C compiler or the build
    fails, the package installs all the same, uses its Numba operators, and `dithc doctor` says so.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        build = Path(self.build_temp).resolve() / "kernels"
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(
            missing_ok=True
        )  # one of an earlier version would be worse than none; a new file, for who runs the old
        cmake = [sys.executable, "-m", "cmake"]
        try:
            subprocess.run([*cmake, "-S", str(KERNELS), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"], check=True)
            subprocess.run([*cmake, "--build", str(build), "--parallel", "--target", "_kernels"], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stderr.write(
                f"note: the C kernels were not built ({error}); dithc uses its Numba operators. For the faster ones: "
                "apt-get install build-essential (or another C compiler), then install again\n"
            )
            return
        self.copy_file(str(build / "_kernels.so"), str(target))


setup(ext_modules=[Extension("dithc.native._kernels", sources=[])], cmdclass={"build_ext": BuildWithCMake})
