"""`dithc status` and `dithc run` from the command line."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dithc.config import load_experiment
from dithc.core.artifacts import Lease
from dithc.core.integrity import dump_checksummed
from dithc.workflow.monitor.warnings import kind_of
from tests.workflow.conftest import DEMO, LOCAL, REDUCED, ROOT, TERMINAL, processes_in

pytestmark = pytest.mark.slow
SYNTHESIZED = "results/demo/inputs/landscape/manifest.json"


def line(*words: str) -> list[str]:
    return [str(Path(sys.executable).parent / "dithc"), *words]


def dithc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line(*words), cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def snakemake_log(folder: Path, experiment: str = "demo") -> str:
    return "".join(
        path.read_text() for path in sorted((folder / "results" / experiment / "logs").glob("snakemake-*.log"))
    )


def test_run_prints_one_line_per_stage_and_scores(finished: Path) -> None:
    text = (finished / TERMINAL).read_text()
    lines = text.splitlines()
    assert len(lines) <= 115, text  # 120 with messages of an installation
    assert max(map(len, lines)) <= 160, text
    assert sum(": done" in line for line in lines) == 28
    assert "started" not in text
    assert text.count("snakemake-") == 1, "the output must name its log once"
    for evaluation in ("sentinel2-after", "sentinel2-codec"):
        assert re.search(rf"\n  {evaluation} +FID .+, floor .+, KID .+ \[.+\], n 16 generated, 1\d\d real\n", text)
    for word in (
        "rendering B04 B03 B02, 0 to 0.3",
        "extractor landscape-classifier (",
        "time of all finished stages",
        "warnings: ",
    ):
        assert word in text
    output = [path.read_text() for path in (finished / "results/demo/logs").rglob("*.log")]
    warned = {line.partition("warning: ")[2] for log in output for line in log.splitlines() if ": warning: " in line}
    assert warned
    reported = kind_of(" ".join(text.split()))
    assert all(kind_of(warning)[:60] in reported for warning in warned), "every kind must be reported"
    assert lines[-1] == f"report: {finished / 'results/demo/report.html'}"


def test_status_lists_all_stages_of_a_finished_experiment_as_done(finished: Path) -> None:
    done = dithc(finished, "status", "--json", "status.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("demo: 28 of 28 stages done")
    assert lines[-1] == f"report: {finished / 'results/demo/report.html'}"
    assert all("done" in row for row in lines[:-2])
    assert any(row.startswith("evaluation") and "FID" in row for row in lines)
    content = json.loads((finished / "status.json").read_text())
    assert {stage["state"] for stage in content[0]["stages"]} == {"done"}
    assert dithc(finished.parent, "status", str(finished / "results/demo"), "--watch", "60").stdout == done.stdout
    assert dithc(finished.parent, "status").returncode == 2, "there is no experiment"


def test_run_shows_stages_and_writes_snakemake_output_to_a_log(project: Path) -> None:
    done = dithc(project, "run", *LOCAL, "--", SYNTHESIZED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "synthesize landscape: done in" in done.stdout
    assert "demo: 1 of 28 stages done" in done.stdout
    assert "localrule" not in done.stdout
    assert "localrule synthesize:" in snakemake_log(project)
    again = dithc(project, "run", *LOCAL, "--verbose", "--", SYNTHESIZED)
    assert "Nothing to be done" in again.stdout
    assert len(list((project / "results/demo/logs").glob("snakemake-*.log"))) == 2


def test_run_with_a_failing_stage_prints_error_and_log_path(project: Path) -> None:
    (project / "pictures" / "a").mkdir(parents=True)
    (project / "pictures" / "a" / "0.jpg").write_bytes(b"no picture")
    (project / "mine.yaml").write_text("datasets: {landscape: {source: {synthetic: null, path: pictures}}}")
    files = ("--configfile", DEMO, "mine.yaml")
    done = dithc(
        project, "run", "--profile", "profiles/local", *files, "--", "results/demo/scenes/landscape/manifest.json"
    )
    assert done.returncode == 1
    assert done.stdout.count("fix:") == 1
    assert "logs/ingest/landscape.log" in done.stdout
    assert "Snakemake's output: results/demo/logs/snakemake-" in done.stdout
    assert "RuleException" not in done.stdout
    assert dithc(project, "status").returncode == 1


def test_run_prints_the_full_error_before_the_first_job(project: Path) -> None:
    done = dithc(project, "run", "--profile", "profiles/local", "--configfile", "config/experiments/gaofen2.yaml")
    assert done.returncode == 1
    for word in ("  got:", "datasets.gaofen2.source.path: data/gaofen2", "  expected:", "  fix:"):
        assert word in done.stdout
    assert "Traceback" not in done.stdout
    assert "__onstart" not in done.stdout


def test_run_prints_snakemake_errors_and_the_dry_run_plan(project: Path) -> None:
    done = dithc(project, "run", *LOCAL, "--", "no-such-target")
    assert done.returncode == 1
    assert "unknown target of the run" in done.stdout
    assert "got:      no-such-target" in done.stdout
    assert "Platform:" not in done.stdout
    assert "\nreport " in dithc(project, "run", *LOCAL, "--", "-n").stdout


def test_run_continues_with_closed_standard_output(project: Path) -> None:
    with subprocess.Popen(line("run", *LOCAL, "--", SYNTHESIZED), cwd=project, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.close()
        assert child.wait(timeout=120) == 0
    assert (project / SYNTHESIZED).exists()


@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGTERM)])
def test_signal_stops_snakemake_and_all_child_processes(project: Path, numbers: tuple[signal.Signals, ...]) -> None:
    go, started, first = project / "go", project / "begun", numbers[0]
    # The stage waits for a file; with two signals it ignores the first.
    ignore = "trap '' INT TERM\n" if len(numbers) > 1 else ""
    (project / "hold.sh").write_text(f"{ignore}touch {started}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
    words = line("run", *LOCAL, "--", SYNTHESIZED, "--config", "machine={launcher: none, prologue: hold.sh}")
    with subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, text=True) as child:
        limit = time.monotonic() + 240
        while not started.exists():
            assert time.monotonic() < limit
            assert child.poll() is None, child.communicate()
            time.sleep(0.1)
        assert child.stdout is not None
        child.send_signal(first)
        output = next(text for text in child.stdout if text.startswith(first.name))
        assert f"kill {child.pid}" in output
        if numbers == (signal.SIGTERM,):
            go.touch()
        elif len(numbers) > 1:
            time.sleep(0.2)
            assert child.poll() is None
            child.send_signal(numbers[1])
        output, _ = child.communicate(timeout=240)
    assert child.returncode != 0
    assert f"stopped by {first.name}" in output
    assert processes_in(project) == []
    assert not (project / "results/demo/lease.json").exists()
    assert (project / SYNTHESIZED).exists() == (numbers == (signal.SIGTERM,))
    if len(numbers) > 1:
        go.touch()
        assert dithc(project, *words[1:]).returncode == 0


def test_terminal_shows_running_stages_in_place(project: Path) -> None:
    go, log = project / "go", project / "results/demo/logs/synthesize/landscape.log"
    # The stage waits until the terminal shows it as running.
    (project / "hold.sh").write_text(f"touch {log}\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
    terminal, screen = pty.openpty()
    words = line("run", *LOCAL, "--", SYNTHESIZED, "--config", "machine={launcher: none, prologue: hold.sh}")
    with subprocess.Popen(
        words, cwd=project, stdout=screen, stderr=screen, env={**os.environ, "COLUMNS": "80"}
    ) as child:
        os.close(screen)
        output, limit = b"", time.monotonic() + 120
        while True:
            if b"\x1b[36mrunning\x1b[0m" in output or time.monotonic() > limit:
                go.touch()
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                part = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            output += part
            if not part:
                break
    os.close(terminal)
    assert child.returncode == 0
    text = output.decode()
    assert "\x1b[36mrunning\x1b[0m" in text
    assert "\x1b[J" in text
    assert "synthesize landscape: done in" in text


def test_status_matches_only_slurm_jobs_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "results" / "demo"
    folder.mkdir(parents=True)
    content = load_experiment([ROOT / DEMO, REDUCED]).model_dump(mode="json")
    content["machine"] |= {"scheduler": "slurm", "cpus_per_node": 8, "cpus_per_rank": 8}
    (folder / "config.json").write_text(dump_checksummed(content))
    (folder / "driver.json").write_text(json.dumps({"name": "mine", "started_at": 0}))
    jobs = [
        f"17|RUNNING|mine|node3|None|0:05|{tmp_path}|rule_synthesize_wildcards_landscape",
        f"18|PENDING|mine||Priority|0:00|{tmp_path}|rule_synthesize_wildcards_sentinel2",
        f"19|PENDING|other||Priority|0:00|{tmp_path}|rule_synthesize_wildcards_gaofen2",
        f"20|PENDING|mine||Priority|0:00|{tmp_path}/elsewhere|rule_synthesize_wildcards_gaofen2",
    ]
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(jobs) + "\nEND\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    lines = dithc(tmp_path, "status").stdout.splitlines()
    assert [line.split(maxsplit=2)[2].strip() for line in lines[:3]] == [
        "running  synthesize: job 17 on node3",
        "queued   synthesize: job 18: Priority",
        "waiting  synthesize: not started",
    ]
    squeue.write_text(squeue.read_text().replace("17|RUNNING", "17|CANCELLED"))
    with Lease(folder):  # a new driver, before its first job
        line = dithc(tmp_path, "status").stdout.splitlines()[0]
    assert line.split(maxsplit=2)[2].strip() == "waiting  synthesize: for free resources"
