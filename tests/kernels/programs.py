"""C test programs: built from kernel sources, optionally with sanitizers."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"
MAIN = """
#include <stdlib.h>
#include "test/cases.h"
int main(int count, char **words) {{
    return count != {count} ? 9 : {call};
}}
"""


def build(names: tuple[str, ...], call: str, folder: Path, *flags: str, **replaced: str) -> Path:
    """Build a program that returns the result of `call`, such as hc_test_team(atoi(words[1])), and return its path.

    Args:
        names: Sources, relative to kernels/.
        call: C expression of the arguments `words`.
        folder: Folder for the program.
        flags: Flags of the compiler.
        replaced: Text of sources by name, instead of the text of the file.
    """
    if not shutil.which("cc"):
        pytest.skip("no C compiler (cc)")
    main = MAIN.format(count=1 + call.count("words["), call=call)
    sources = [KERNELS / name for name in names]
    for name, text in {"main": main, **replaced}.items():
        (folder / f"{name}.c").write_text(text)
        sources = [folder / f"{name}.c" if source.stem == name else source for source in sources]
    includes = [f"-I{KERNELS / name}" for name in ("", "include", "team")]
    program = folder / "program"
    command = ["cc", "-std=gnu11", "-O1", "-g", *flags, *includes, str(folder / "main.c"), *map(str, sources)]
    done = subprocess.run([*command, "-o", str(program), "-lpthread"], capture_output=True, text=True)
    if done.returncode and "sanitize" in " ".join(flags):
        pytest.skip(f"no sanitizer: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *words: object, pass_fds: tuple[int, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run a program without address space layout randomization, which ThreadSanitizer's fixed memory map requires."""
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    command = [*fixed, str(program), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, pass_fds=pass_fds)
