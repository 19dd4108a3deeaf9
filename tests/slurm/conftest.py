"""Private Slurm, a small experiment on it, and actions that interrupt the experiment."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.local_slurm import LocalSlurm, unavailable_reason

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
SMALL = Path(__file__).parent / "small.yaml"
FIRST_SEGMENT = "results/small/runs/pretrain/step_0000300.json"
QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10")


@pytest.fixture(scope="session")
def start_slurm() -> Iterator[Callable[[bool], LocalSlurm]]:
    """Return a function that starts Slurm with or without accounting; one instance exists at a time."""
    current: list[LocalSlurm] = []

    def start(accounting: bool) -> LocalSlurm:
        if reason := unavailable_reason(accounting=accounting):
            pytest.skip(reason)
        if current and current[0].accounting != accounting:
            current.pop().__exit__()
        if not current:
            current.append(LocalSlurm(accounting=accounting).__enter__())
        return current[0]

    yield start
    for slurm in current:
        slurm.__exit__()


@pytest.fixture
def slurm(start_slurm: Callable[[bool], LocalSlurm], request: pytest.FixtureRequest) -> LocalSlurm:
    """Slurm with accounting; `@pytest.mark.parametrize("slurm", [False], indirect=True)` for Slurm without it."""
    return start_slurm(getattr(request, "param", True))


@pytest.fixture(scope="session")
def prepared_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project with latents from this machine, so that each test consists of one training run."""
    folder = make_project(tmp_path_factory.mktemp("prepared") / "project")
    line = [BIN / "snakemake", "all_latents", "--profile", "profiles/local", "--configfile", "small.yaml"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def make_project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("Snakefile", "workflow", "config"):
        os.symlink(ROOT / name, folder / name)
    shutil.copytree(ROOT / "profiles", folder / "profiles")
    shutil.copy(SMALL, folder / "small.yaml")
    return folder


class ClusterProject:
    """One project in `folder` on a Slurm, and its driver, Snakemake, after its start."""

    def __init__(
        self, slurm: LocalSlurm, folder: Path, *, nodes: int = 2, partition: str = "cpu", ranks_per_node: int = 1
    ) -> None:
        self.slurm, self.folder = slurm, folder
        self.driver: subprocess.Popen[str] | None = None
        written = self.dithc("doctor", "--write-profile", "cluster", "--nodes", str(nodes), "--partition", partition)
        assert written.returncode == 0, written.stdout + written.stderr
        cores = f"cpus_per_rank: {4 // ranks_per_node}"
        self.change_profile("ranks_per_node: 1, cpus_per_rank: 4", f"ranks_per_node: {ranks_per_node}, {cores}")

    def change_profile(self, old: str, new: str) -> None:
        path = self.folder / "profiles" / "cluster" / "config.yaml"
        text = path.read_text()
        assert old in text, text
        path.write_text(text.replace(old, new))

    def dithc(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = [BIN / "dithc", *words]
        environment = self.slurm.environment
        return subprocess.run(
            line, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    def start(self, *targets: str, settings: str = "", words: Sequence[str] = ()) -> None:
        """Start a driver, as on the login node.

        `settings` is YAML that overrides the experiment; `words` are further options of Snakemake.
        """
        (self.folder / "more.yaml").write_text(settings or "{}")
        log = (self.folder / "driver.log").open("a")
        options = ["--profile", "cluster", "--configfile", "small.yaml", "more.yaml", *QUICK, *words]
        line, environment = (
            [BIN / "snakemake", *targets, *options],
            self.slurm.environment | {"DITHC_POLL_SECONDS": "2"},
        )
        self.driver = subprocess.Popen(line, cwd=self.folder, env=environment, stdout=log, stderr=log, text=True)

    def finish(self, *, seconds: float = 240.0) -> tuple[int, str]:
        """Wait for the driver's end; return its status and the output of all drivers."""
        assert self.driver is not None
        try:
            status = self.driver.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            queue = self.slurm.run("squeue", "-o", "%i %j %T %r", check=False)
            pytest.fail(f"the driver did not end within {seconds:.0f} s:\n{queue}\n{self.output[-6000:]}")
        return status, self.output

    def succeed(self, *, seconds: float = 240.0) -> str:
        """Wait for the driver's end without an error; return the output of all drivers."""
        status, output = self.finish(seconds=seconds)
        assert status == 0, output[-4000:]
        return output

    @property
    def output(self) -> str:
        return (self.folder / "driver.log").read_text()

    @property
    def step(self) -> int:
        return max(self.steps(), default=0)

    def steps(self) -> list[int]:
        paths = self.folder.glob("store/pretrain-*/metrics/*.jsonl")
        rows = [line for path in paths for line in path.read_text().splitlines()]
        return [int(json.loads(row)["step"]) for row in rows if row.endswith("}")]

    def reach(self, step: int) -> None:
        self.slurm.wait(lambda: self.step >= step or self.ended, f"step {step}\n{self.output[-3000:]}", seconds=120.0)
        assert not self.ended, self.output[-3000:]

    @property
    def ended(self) -> bool:
        return self.driver is not None and self.driver.poll() is not None

    def jobs(self) -> list[dict[str, str]]:
        text = self.slurm.run("squeue", "--states=all", "-h", "-o", "%i|%T|%Z|%k")
        rows = [line.split("|", 3) for line in text.splitlines()]
        # Jobs of `dithc doctor` have no comment.
        here = [row for row in rows if Path(row[2]) == self.folder.resolve() and row[3] != "(null)"]
        return [{"id": row[0], "state": row[1], "comment": row[3]} for row in here]

    def job(self) -> str:
        (one,) = [job for job in self.jobs() if job["state"] in ("PENDING", "RUNNING", "CONFIGURING")]
        return one["id"]

    def restarts(self, job: str) -> int:
        text = self.slurm.run("scontrol", "show", "job", "-o", job)
        return int(text.partition("Restarts=")[2].split()[0])

    def weights(self, manifest: str = FIRST_SEGMENT) -> dict[str, str]:
        content: dict[str, Any] = json.loads((self.folder / manifest).read_text())
        files = {Path(entry["path"]).name: str(entry["sha256"]) for entry in content["files"]}
        found = {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
        assert found, content["files"]
        return found

    def kill_driver(self) -> None:
        assert self.driver is not None
        os.kill(self.driver.pid, signal.SIGKILL)
        self.driver.wait()

    def close(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
        for job in self.jobs():
            self.slurm.run("scancel", job["id"], check=False)


@pytest.fixture
def project(slurm: LocalSlurm, prepared_project: Path, tmp_path: Path) -> Iterator[ClusterProject]:
    """Project with latents on Slurm; 300 training steps on two nodes are one job."""
    folder = tmp_path / "project"
    shutil.copytree(prepared_project, folder, symlinks=True)
    cluster_project = ClusterProject(slurm, folder)
    yield cluster_project
    cluster_project.close()
    for node in ("n1", "n2"):
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


@pytest.fixture(scope="session")
def uninterrupted_weights(
    start_slurm: Callable[[bool], LocalSlurm], prepared_project: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "project"
    shutil.copytree(prepared_project, folder, symlinks=True)
    one = ClusterProject(start_slurm(True), folder)
    one.start(FIRST_SEGMENT)
    one.succeed()
    return one.weights()
