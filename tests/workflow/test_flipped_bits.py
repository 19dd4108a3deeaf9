"""One flipped bit in any file of a finished experiment: `verify` finds it, and no stage silently changes its result."""

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dithc.cli import main
from dithc.cli.results.verification import NOTES, find
from dithc.core.integrity import dump_checksummed, load_checksummed
from tests.sampling import commit_of
from tests.workflow.conftest import LOCAL, snakemake

SEED = os.environ.get("DITHC_ATTACK_SEED") or commit_of("HEAD") or "0"

pytestmark = pytest.mark.slow

# Records of a running run and of the driver; no result depends on them.
PASSED_OVER = (*NOTES, "attempts", ".snakemake", "lease.json", "driver.json", "fingerprints.json")
TIMES = re.compile(r"seconds|^machine$|second$|written|peak|host|time|bytes_free|reused|extracted")


@dataclass
class Attack:
    """Copy of a finished project, and the commands that produced it.

    Attributes:
        folder: project and working folder.
        commands: arguments of each stage's command.
        expected: results of intact files, by command.
    """

    folder: Path
    commands: list[list[str]]
    expected: dict[str, Any] = field(default_factory=dict)

    def products(self) -> list[Path]:
        paths = [path for name in ("results", "store") for path in sorted((self.folder / name).rglob("*"))]
        return [
            path.relative_to(self.folder)
            for path in paths
            if path.is_file()
            and path.stat().st_size
            and not set(path.relative_to(self.folder).parts) & set(PASSED_OVER)
        ]

    def readers(self, victim: Path) -> list[list[str]]:
        found = []
        for line in self.commands:
            given = [Path(part) for before, part in pairwise(line) if before != "--out"]
            if any(self._belongs_to(victim, path) for path in given):
                found.append(line)
        return found

    def _belongs_to(self, victim: Path, given: Path) -> bool:
        if given == victim or not given.is_file() or given.name == "config.json":
            return given == victim
        if given.parts[2] == "runs":
            listed = [entry["path"] for entry in json.loads(given.read_text(errors="replace"))["files"]]
            return any((given.parent / path).resolve() == victim.resolve() for path in listed)
        return given.parent in victim.parents

    def run(self, line: list[str], scratch: Path) -> tuple[int, Any]:
        out = scratch / Path(*Path(line[line.index("--out") + 1]).parts[-2:])
        line = [str(out) if before == "--out" else part for before, part in zip(["", *line], line, strict=False)]
        if line[0] == "train" and (self.folder / line[line.index("--config") + 1]).read_bytes() == self.config:
            scratch.mkdir(parents=True, exist_ok=True)
            (scratch / "config.json").write_text(
                dump_checksummed({**load_checksummed(self.config.decode()), "store": str(scratch / "store")})
            )
            line[line.index("--config") + 1] = str(scratch / "config.json")
        status = main(line)
        result = out.with_suffix(".json")
        return status, _comparable(json.loads(result.read_text())) if status == 0 else None

    def reference(self, line: list[str], scratch: Path) -> Any:
        key = " ".join(line)
        if key not in self.expected:
            status, self.expected[key] = self.run(line, scratch / "whole")
            assert status == 0, key
        return self.expected[key]

    @property
    def config(self) -> bytes:
        return (self.folder / "whole-config.json").read_bytes()


def _comparable(value: Any) -> Any:
    """Return a result without times, hosts and folders, which differ between runs."""
    if isinstance(value, dict):
        kept = {
            key: item
            for key, item in value.items()
            if not TIMES.search(key) and key not in ("checksum", "inputs", "files")
        }
        return {key: _comparable(item) for key, item in kept.items()}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return Path(value).name if isinstance(value, str) and "/" in value else value


def _difference(a: Any, b: Any) -> Any:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((f"{key}: {_difference(a[key], b[key])}" for key in a if a[key] != b[key]), None)
    return f"{a} is not {b}"


@pytest.fixture(scope="module")
def attack(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Attack:
    text = snakemake(finished, *LOCAL, "-n", "-p", "--forceall").stdout
    commands = []
    for line in re.findall(r"\b(dithc [^\n]*?) 2>&1", text):
        line = shlex.split(line)
        line = line[line.index("--") + 1 :] if "--" in line else line
        if line[1] != "synthesize":
            commands.append(line[1:])
    stages = ["ingest", "tiles", "codec", "latents", "train", "sample", "features", "fid", "report"]
    assert {line[0] for line in commands} >= set(stages)
    folder = Path(shutil.copytree(finished, tmp_path_factory.mktemp("attack") / "project", symlinks=True))
    shutil.copy(folder / "results/demo/config.json", folder / "whole-config.json")
    return Attack(folder, commands)


def flip(path: Path, draw: Random) -> str:
    data = bytearray(path.read_bytes())
    bit = draw.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} of {path}"


def trial(attack: Attack, seed: str, scratch: Path) -> str:
    """Flip one bit of one file; return the outcome.

    Raises:
        AssertionError: the flip was not detected, or changed a result.
    """
    draw = Random(seed)
    victim = draw.choice(attack.products())
    readers = attack.readers(victim)
    line = draw.choices(readers, [1 if line[0] == "report" else 4 for line in readers])[0] if readers else None
    reference = attack.reference(line, scratch / "reference" / str(attack.commands.index(line))) if line else None
    whole = victim.read_bytes()
    flipped = f"{seed}: {flip(victim, draw)}"
    try:
        found = find([Path("results/demo"), Path("store")])
        assert found.problems, f"{flipped}: not found by verify"
        faults = [fault.path + fault.text for fault in found.problems]  # a part of a manifest has a text
        assert any(
            str(victim) in name or (victim.name.endswith(".provenance.json") and victim.name in name) for name in faults
        ), f"{flipped}: {found.problems}"
        if line is None:
            return "not read"
        status, result = attack.run(line, scratch / "flipped")
        assert status in (0, 2), f"{flipped}: {line[0]} ended with {status}"
        assert status == 2 or result == reference, (
            f"{flipped}: another result: {_difference(result, reference)}; {' '.join(line)}"
        )
        return "refused" if status else "the same result"
    finally:
        victim.write_bytes(whole)
        shutil.rmtree(scratch / "flipped", ignore_errors=True)


def trials(attack: Attack, count: int, *, seed: str, scratch: Path) -> dict[str, int]:
    outcomes: dict[str, int] = {}
    for number in range(count):
        outcome = trial(attack, f"{seed}/{number}", scratch)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{count} flipped bits, seed {seed}: {outcomes}")
    return outcomes


@pytest.fixture
def project_attack(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> Attack:
    monkeypatch.chdir(attack.folder)
    return attack


@pytest.mark.sampled("after the demo")
def test_flipped_bits_are_detected_and_preserve_results(project_attack: Attack, tmp_path: Path) -> None:
    outcomes = trials(project_attack, 5, seed=SEED, scratch=tmp_path)
    assert outcomes["refused"] > 0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_1000_flipped_bits_are_detected_and_preserve_results(project_attack: Attack, tmp_path: Path) -> None:
    assert sum(trials(project_attack, 1000, seed=SEED, scratch=tmp_path).values()) == 1000
