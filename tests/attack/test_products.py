"""Tests of hostile data files and products: rejected or read unchanged, in bounded time and memory."""

import json
import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sampling
from tests.attack import archives, gaofen, rasters, safe
from tests.attack.products import Draws, Trial, Workspace

ROOT = Path(__file__).parent.parent.parent
GENERATORS = [one for module in (safe, archives, gaofen, rasters) for one in module.GENERATORS]
FEW, ALL = 36, 30 * len(GENERATORS)
GOOD_INPUT_OF_KIND = {"sentinel2": "safe", "image-folder": "images", "gaofen2": "gaofen", "geotiff": "geotiff"}
EXPECTED_NAMES = {"config.json", "log", "good", "trial", "outside", "scratch"}
PATIENCE_SECONDS = 300  # for a busy machine; a hang lasts forever
Answer = dict[str, Any]


class Child:
    """Process that stages inputs; it serves many trials and is restarted after a crash."""

    def __init__(self, log: Path, *, scratch: Path) -> None:
        settings = {
            "TMPDIR": str(scratch),
            "GDAL_NUM_THREADS": "ALL_CPUS",
            "OPJ_NUM_THREADS": "4",
            "GDAL_HTTP_TIMEOUT": "5",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.products_child"],
            cwd=ROOT,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
        )

    def request(self, config: Path, out: Path) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"config": str(config), "out": str(out)}) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.end()
        return (
            json.loads(line)
            if line
            else {"status": -2, "text": f"hangs or died: {self.process.returncode}", "scenes": {}}
        )

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Range:
    """Environment of the trials: good inputs and a child process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.good, self.scratch = folder, folder / "good", folder / "scratch" / "temporary"
        self.good.mkdir()
        self.scratch.mkdir(parents=True)
        self.child = Child(folder / "log", scratch=self.scratch)
        self.truths: dict[str, dict[str, Any]] = {}
        self.outcomes: Counter[tuple[str, str]] = Counter()

    def truth(self, trial: Trial, workspace: Workspace) -> dict[str, Any]:
        """Return the result of the good input, by scene."""
        source = trial.truth or trial.source
        name, _, below = (trial.like or GOOD_INPUT_OF_KIND[source["kind"]]).partition("/")
        key = json.dumps([name, below, source], sort_keys=True)
        if key not in self.truths:
            answer = self.stage(source, workspace.good_input(name) / below)
            assert answer["status"] == 0, answer["text"]
            assert not any("rejected" in found for found in answer["scenes"].values()), answer
            self.truths[key] = answer["scenes"]
        return self.truths[key]

    def stage(self, source: dict[str, Any], folder: Path) -> Answer:
        named = {"image-folder": ["R", "G", "B"], "gaofen2": ["R", "G", "B"]}.get(source["kind"], ["B04", "B03", "B02"])
        display = {"bands": source.get("bands", named)[:3], "low": 0.0, "high": 0.3}
        data = {
            "title": "A set",
            "codec": "none",
            "max_rejected_fraction": 0.9,
            "rendering": display,
            "source": {**source, "path": str(folder)},
        }
        config, out = self.folder / "config.json", self.folder / "out"
        config.write_text(json.dumps({"seed": 0, "datasets": {"set": data}, "codecs": {"none": {"kind": "pixel"}}}))
        shutil.rmtree(out, ignore_errors=True)
        if self.child.process.returncode is not None:
            self.child = Child(self.folder / "log", scratch=self.scratch)
        return self.child.request(config, out)

    def workspace(self) -> Workspace:
        workspace = Workspace(good=self.good, files=self.folder / "trial" / "files", outside=self.folder / "outside")
        for folder in (workspace.files.parent, workspace.outside):
            for path, folders, _ in os.walk(folder):  # unreadable folders cannot be removed
                for name in folders:
                    if not os.path.islink(os.path.join(path, name)):
                        os.chmod(os.path.join(path, name), 0o700)
            shutil.rmtree(folder, ignore_errors=True)
        workspace.files.mkdir(parents=True)
        workspace.outside.mkdir()
        os.mkfifo(workspace.outside / "pipe")
        return workspace

    def run_trial(self, generator: Callable[[Draws, Workspace], Trial], seed: str) -> str:
        """Stage a hostile input and check the result; return a description of the failure, or an empty string."""
        workspace = self.workspace()
        trial = generator(Draws(seed), workspace)
        truth = self.truth(trial, workspace)
        before = self.file_states()
        answer = self.stage(trial.source, workspace.files)
        fault = (
            self.find_fault(trial, answer, truth)
            or ("it changed files" if self.file_states() != before else "")
            or self.unexpected_files()
        )
        self.outcomes[generator.__name__, "wrong" if fault else outcome_of(trial, answer)] += 1
        return f"{generator.__name__} {seed}, {trial.did}: {fault}\n{answer['text'][-1500:]}" if fault else ""

    def find_fault(self, trial: Trial, answer: Answer, truth: dict[str, Any]) -> str:
        if answer["status"] not in (0, 2) or "Traceback" in answer["text"]:
            return f"status {answer['status']}"
        if answer["status"] == 2:
            lines = all(f"\n  {category}:" in answer["text"] for category in ("got", "expected", "fix"))
            is_of_types = "wrong_dtype" in answer["text"]  # equal numbers of files of two data types
            is_due = not trial.kept or is_of_types
            return "" if lines and is_due else "an error, not a row with a reason, or not in four lines"
        scenes = answer["scenes"]
        accepted = {name for name, found in scenes.items() if "rejected" not in found}
        kept = {name for name in scenes if name in trial.kept}
        if kept - accepted:
            return "the good file was rejected"
        if trial.kept and len(kept) < min(1, len(trial.kept)):
            return f"the good file has no row: {scenes}"
        if trial.rejected and (accepted - kept or len(scenes) <= len(kept)):
            return f"it was used, or has no row: {scenes}"
        for name in accepted:
            if difference := self.differs(trial, name in kept, scenes[name], truth.get(name), list(truth.values())):
                return f"{difference}: {scenes}, not {truth}"
        return ""

    def differs(
        self,
        trial: Trial,
        kept: bool,
        found: dict[str, Any],
        named: dict[str, Any] | None,
        all_of: list[dict[str, Any]],
    ) -> str:
        """Return the difference of an accepted scene from the expected scene; empty if there is no difference."""
        if trial.note and not kept and trial.note not in found["notes"].split():
            return f"it lacks the note {trial.note}"
        if trial.altered and not kept:
            return ""
        fitting = [named] if named is not None else all_of
        same = any(all(found[key] == one[key] for key in ("pixels", "grid")) for one in fitting)
        return "" if same else "it read other pixels, or on another grid"

    def unexpected_files(self) -> str:
        """Return unexpected files; remove files that an ended stage keeps for the next stage."""
        shutil.rmtree(self.folder / ".out.partial", ignore_errors=True)
        names = [path.name for path in self.folder.iterdir() if path.name not in EXPECTED_NAMES | {"out"}]
        names += [path.name for path in self.scratch.parent.rglob("*") if path != self.scratch]
        return f"it left {names}" if names else ""

    def file_states(self) -> dict[str, tuple[int, int]]:
        """Return size and modification time of all files that a stage must not change."""
        found = {}
        for top in ("trial", "outside", "good"):
            for folder, _, names in os.walk(self.folder / top):
                for name in names:
                    state = os.lstat(os.path.join(folder, name))
                    found[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
        return found


@pytest.fixture(scope="module")
def trial_range(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    made = Range(tmp_path_factory.mktemp("products"))
    yield made
    made.child.end()


def outcome_of(trial: Trial, answer: Answer) -> str:
    if answer["status"] == 2:
        return "error"
    scenes = {name: found for name, found in answer["scenes"].items() if name not in trial.kept}
    if not scenes or any("rejected" in found for found in scenes.values()):
        return "rejected" if scenes else "left alone"
    if trial.altered:
        return "as declared"
    return "noted" if any(found["notes"] for found in scenes.values()) else "unchanged"


def attack(trial_range: Range, *, trials: int, seed: str) -> None:
    drawn = Draws(seed).sample(GENERATORS, len(GENERATORS))
    found = []
    for number in range(trials):
        if text := trial_range.run_trial(drawn[number % len(drawn)], f"{seed}-{number}"):
            found.append(text)
    by_kind = Counter(text.split(" ", 1)[0] for text in found)
    for name in sorted({name for name, _ in trial_range.outcomes}):
        counts = {category: count for (of, category), count in sorted(trial_range.outcomes.items()) if of == name}
        print(f"{name:24} {', '.join(f'{count} {category}' for category, count in counts.items())}")
    assert not found, f"{len(found)} of {trials} trials, seed {seed}: {dict(by_kind)}\n" + "\n".join(found[:8])


def seed_of_commit() -> str:
    return os.environ.get("DITHC_ATTACK_SEED") or sampling.commit_of("HEAD")[:12]


@pytest.mark.slow
def test_hostile_inputs_sampled_by_commit_are_rejected_or_read_unchanged(trial_range: Range) -> None:
    attack(trial_range, trials=FEW, seed=seed_of_commit())


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_all_types_of_hostile_inputs_are_rejected_or_read_unchanged(trial_range: Range) -> None:
    attack(trial_range, trials=ALL, seed=seed_of_commit())
