"""Hostile data files and products: refused with a reason or read as they were, in bounded time and memory."""

import json
import os
import random
import select
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sampling
from tests.attack.products import ARRAY, GENERATORS, PICTURES, SAFE, Place, Trial, make_good

ROOT = Path(__file__).parent.parent.parent
FEW, ALL = 2 * len(GENERATORS), 30 * len(GENERATORS)
PATIENCE_SECONDS = 300  # a machine with other work; what hangs, hangs for ever
Answer = dict[str, Any]


class Child:
    """A process that stages what it is told, kept for many trials and made again when one of them ended it."""

    def __init__(self, log: Path) -> None:
        threads = {
            "GDAL_NUM_THREADS": "ALL_CPUS",
            "OPJ_NUM_THREADS": "4",
            "GDAL_HTTP_TIMEOUT": "5",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.products_child"],
            cwd=ROOT,
            env=os.environ | threads,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
        )

    def ask(self, config: Path, out: Path) -> Answer:
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
    """Where trials take place: good inputs, a child, and a socket that counts who calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.good = folder, folder / "good"
        self.good.mkdir()
        make_good(self.good)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.child = Child(folder / "log")
        self.truth = {
            source["kind"]: set(self.read(source, self.folder_of(source)).values())
            for source in (SAFE, ARRAY, PICTURES)
        }
        assert all(len(pixels) == 1 for kind, pixels in self.truth.items() if kind != "image-folder"), self.truth

    def folder_of(self, source: dict[str, Any]) -> Path:
        return self.good / {"sentinel2": "safe", "sentinel2-array": "array", "image-folder": "pictures"}[source["kind"]]

    def read(self, source: dict[str, Any], folder: Path) -> dict[str, str]:
        answer = self.stage(source, folder)
        assert answer["status"] == 0, answer["text"]
        return dict(answer["scenes"])

    def stage(self, source: dict[str, Any], folder: Path) -> Answer:
        display = {
            "bands": ["B04", "B03", "B02"] if "image" not in source["kind"] else ["R", "G", "B"],
            "low": 0.0,
            "high": 0.3,
        }
        data = {
            "title": "A set",
            "codec": "none",
            "max_rejected": 0.9,
            "display": display,
            "source": {**source, "path": str(folder)},
        }
        config, out = self.folder / "config.json", self.folder / "out"
        config.write_text(json.dumps({"seed": 0, "datasets": {"set": data}, "codecs": {"none": {"kind": "pixel"}}}))
        shutil.rmtree(out, ignore_errors=True)
        if self.child.process.returncode is not None:
            self.child = Child(self.folder / "log")
        return self.child.ask(config, out)

    def try_one(self, generator: Callable[[random.Random, Place], Trial], seed: str) -> str:
        """Makes a hostile input, stages it, and judges what came of it: a word where that was wrong, else empty."""
        place = Place(
            good=self.good,
            files=self.folder / "trial" / "files",
            outside=self.folder / "outside",
            address=f"http://127.0.0.1:{self.listener.getsockname()[1]}/x",
        )
        for folder in (place.files.parent, place.outside):
            shutil.rmtree(folder, ignore_errors=True)
        place.files.mkdir(parents=True)
        place.outside.mkdir()
        os.mkfifo(place.outside / "pipe")
        trial = generator(random.Random(seed), place)
        before = self.seen()
        answer = self.stage(trial.source, place.files)
        wrong = self.judged(trial, answer) or ("it changed files" if self.seen() != before else "")
        return f"{generator.__name__} {seed}, {trial.did}: {wrong}\n{answer['text'][-1500:]}" if wrong else ""

    def judged(self, trial: Trial, answer: Answer) -> str:
        if answer["status"] not in (0, 2) or "Traceback" in answer["text"]:
            return f"status {answer['status']}"
        if self.called():
            return "it called the network"
        if answer["status"] == 2:
            return "" if "remedy:" in answer["text"] and not trial.beside else "an error, not a row with a reason"
        scenes, truth = answer["scenes"], self.truth[trial.source["kind"]]
        accepted = {name for name, found in scenes.items() if not found.startswith("refused")}
        if trial.source.get("size") != 256 and any(scenes[name] not in truth for name in accepted):
            return f"it read other pixels: {scenes}"
        good = {name for name in scenes if name in ("a.npy", "a.png")}
        if trial.beside and good - accepted:
            return "the good file beside it was refused"
        if trial.refused and (accepted - good or (trial.beside and len(scenes) < 2)):
            return f"it was used, or has no row: {scenes}"
        return ""

    def called(self) -> bool:
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def seen(self) -> dict[str, tuple[int, int]]:
        """Size and time of change of all that a stage must leave as it is."""
        found = {}
        for top in ("trial", "outside", "good"):
            for folder, _, names in os.walk(self.folder / top):
                for name in names:
                    state = os.lstat(os.path.join(folder, name))
                    found[os.path.join(folder, name)] = (state.st_size, state.st_mtime_ns)
        return found


@pytest.fixture(scope="module")
def shooting_range(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    made = Range(tmp_path_factory.mktemp("products"))
    yield made
    made.child.end()
    made.listener.close()


def attack(shooting_range: Range, *, trials: int, seed: str) -> None:
    wrong = []
    for number in range(trials):
        generator = GENERATORS[number % len(GENERATORS)]
        wrong.append(shooting_range.try_one(generator, f"{seed}-{number}"))
    found = [text for text in wrong if text]
    by_kind = Counter(text.split(" ", 1)[0] for text in found)
    assert not found, f"{len(found)} of {trials} trials, seed {seed}: {dict(by_kind)}\n" + "\n".join(found[:8])


def seed_of_commit() -> str:
    return os.environ.get("DITHC_ATTACK_SEED") or sampling.commit_of("HEAD")[:12]


def test_hostile_inputs_drawn_by_the_commit_are_refused_or_read_as_they_were(shooting_range: Range) -> None:
    attack(shooting_range, trials=FEW, seed=seed_of_commit())


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_kind_of_hostile_input_is_refused_or_read_as_it_was(shooting_range: Range) -> None:
    attack(shooting_range, trials=ALL, seed=seed_of_commit())
