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

from tests.slurm.box import Box, obstacle

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
SMALL = Path(__file__).parent / "small.yaml"
FIRST_SEGMENT = "results/small/runs/pretrain/step_0000300.json"
QUICK = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "10")


@pytest.fixture(scope="session")
def boxes() -> Iterator[Callable[[bool], Box]]:
    """Function that returns the box with or without accounting; one box exists at a time."""
    current: list[Box] = []

    def give(accounting: bool) -> Box:
        if reason := obstacle(accounting=accounting):
            pytest.skip(reason)
        if current and current[0].accounting != accounting:
            current.pop().__exit__()
        if not current:
            current.append(Box(accounting=accounting).__enter__())
        return current[0]

    yield give
    for box in current:
        box.__exit__()


@pytest.fixture
def box(boxes: Callable[[bool], Box], request: pytest.FixtureRequest) -> Box:
    """The box with accounting; `@pytest.mark.parametrize("box", [False], indirect=True)` for the one without."""
    return boxes(getattr(request, "param", True))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project with latents from this machine, so that a scene consists of one training run."""
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


class Scene:
    """One project in `folder` on a box, and its driver, Snakemake, after its start."""

    def __init__(
        self, box: Box, folder: Path, *, nodes: int = 2, partition: str = "cpu", ranks_per_node: int = 1
    ) -> None:
        self.box, self.folder = box, folder
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
        environment = self.box.environment
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
        line, environment = [BIN / "snakemake", *targets, *options], self.box.environment | {"DITHC_POLL_SECONDS": "2"}
        self.driver = subprocess.Popen(line, cwd=self.folder, env=environment, stdout=log, stderr=log, text=True)

    def finish(self, *, seconds: float = 240.0) -> tuple[int, str]:
        """Wait for the driver's end; return its status and the output of all drivers."""
        assert self.driver is not None
        try:
            status = self.driver.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.driver.kill()
            queue = self.box.run("squeue", "-o", "%i %j %T %r", check=False)
            pytest.fail(f"the driver did not end within {seconds:.0f} s:\n{queue}\n{self.said[-6000:]}")
        return status, self.said

    def succeed(self, *, seconds: float = 240.0) -> str:
        """Wait for the driver's end without an error; return the output of all drivers."""
        status, said = self.finish(seconds=seconds)
        assert status == 0, said[-4000:]
        return said

    @property
    def said(self) -> str:
        return (self.folder / "driver.log").read_text()

    @property
    def step(self) -> int:
        return max(self.steps(), default=0)

    def steps(self) -> list[int]:
        paths = self.folder.glob("store/pretrain-*/metrics/*.jsonl")
        rows = [line for path in paths for line in path.read_text().splitlines()]
        return [int(json.loads(row)["step"]) for row in rows if row.endswith("}")]

    def reach(self, step: int) -> None:
        self.box.wait(lambda: self.step >= step or self.ended, f"step {step}\n{self.said[-3000:]}", seconds=120.0)
        assert not self.ended, self.said[-3000:]

    @property
    def ended(self) -> bool:
        return self.driver is not None and self.driver.poll() is not None

    def jobs(self) -> list[dict[str, str]]:
        text = self.box.run("squeue", "--states=all", "-h", "-o", "%i|%T|%Z|%k")
        rows = [line.split("|", 3) for line in text.splitlines()]
        # Jobs of `dithc doctor` have no comment.
        here = [row for row in rows if Path(row[2]) == self.folder.resolve() and row[3] != "(null)"]
        return [{"id": row[0], "state": row[1], "comment": row[3]} for row in here]

    def job(self) -> str:
        (one,) = [job for job in self.jobs() if job["state"] in ("PENDING", "RUNNING", "CONFIGURING")]
        return one["id"]

    def restarts(self, job: str) -> int:
        text = self.box.run("scontrol", "show", "job", "-o", job)
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
            self.box.run("scancel", job["id"], check=False)


@pytest.fixture
def scene(box: Box, prepared: Path, tmp_path: Path) -> Iterator[Scene]:
    """Project with latents on the box; 300 training steps on two nodes are one job."""
    folder = tmp_path / "project"
    shutil.copytree(prepared, folder, symlinks=True)
    project_scene = Scene(box, folder)
    yield project_scene
    project_scene.close()
    for node in ("n1", "n2"):
        box.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


@pytest.fixture(scope="session")
def uninterrupted(
    boxes: Callable[[bool], Box], prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "project"
    shutil.copytree(prepared, folder, symlinks=True)
    one = Scene(boxes(True), folder)
    one.start(FIRST_SEGMENT)
    one.succeed()
    return one.weights()
