"""Tests of OpenMP variables: a process keeps all of its CPUs, whichever library is imported first."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

TORCH = Path(str(importlib.util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
RUNTIME = next(iter(sorted((TORCH / "lib").glob("libgomp*.so*"))), None)
# The load of torch's runtime binds a process that imports torch; loading it alone saves the seconds of that import.
PROGRAM = """
import ctypes, logging, os, sys
logging.basicConfig(level="INFO")
before = os.sched_getaffinity(0)
order = {"first": ("dithc", "runtime"), "late": ("runtime", "dithc")}[sys.argv[1]]
for name in order:
    if name == "dithc":
        import dithc
    else:
        ctypes.CDLL(sys.argv[2])
        narrowed = os.sched_getaffinity(0)
from dithc.core import openmp
openmp.report()
openmp.report()
assert os.sched_getaffinity(0) == before, os.sched_getaffinity(0)
child = [line.partition("=")[0] for line in os.popen("env")]
print("narrowed" if narrowed < before else "free", os.environ.get("OMP_NUM_THREADS"), *[n for n in sys.argv[3:] if n in child])
"""


def outcome(order: str, setting: str, *, line: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    if RUNTIME is None or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs torch with libgomp, and two CPUs")
    name, _, value = setting.partition("=")
    environment = {key: text for key, text in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))}
    command = [*line, sys.executable, "-c", PROGRAM, order, str(RUNTIME), name]
    return subprocess.run(command, env=environment | {name: value}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("order", "setting"),
    [("first", "OMP_PROC_BIND=close"), ("late", "OMP_PROC_BIND=spread,master"), ("late", "OMP_PLACES={0}")],
)
def test_openmp_binding_variable_is_ignored_and_logged_once(order: str, setting: str) -> None:
    done = outcome(order, setting)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["free" if order == "first" else "narrowed", "None"]
    assert done.stderr.count(f"ignoring {setting}") == 1
    assert ("dithc restored" in done.stderr) == (order == "late")


def test_only_taskset_cpus_are_restored() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for order in ("first", "late"):
        done = outcome(order, "OMP_PROC_BIND=close", line=("taskset", "-c", str(cpus[-1])))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("OMP_THREAD_LIMIT=1", ["1"]),
        ("OMP_DYNAMIC=true", ["None"]),
        ("KMP_AFFINITY=compact", ["None"]),
        ("OMP_PROC_BIND=false", ["None", "OMP_PROC_BIND"]),
    ],
)
def test_harmful_openmp_variables_are_removed_and_harmless_are_kept(setting: str, expected: list[str]) -> None:
    done = outcome("first", setting)
    assert done.stdout.split() == ["free", *expected]
    assert ("ignoring" in done.stderr) == (len(expected) == 1)
