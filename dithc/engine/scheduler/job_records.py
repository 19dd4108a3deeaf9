"""Files of the generic executor in `.snakemake/dithc-jobs`: record, scripts, log and markers of each job."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dithc.core.integrity import parse_json, require_regular_file

JOBS = Path(".snakemake/dithc-jobs")


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job of the workflow engine over all its submissions; times are in seconds since 1970.

    Attributes:
        id, current: number of its first submission, which the engine uses, and of its latest.
        key: prefix of its file names.
        driver: name of the driver that submitted or last queried it.
        line: submit command.
        fruitless, refused: consecutive submissions without progress, and resubmissions that the system refused.
        reached: progress at the last stop.
        missing_since: time at which it became unknown to the system.
        answer, state: `success` or `failed` once settled, and the final state in Slurm's terms.
    """

    id: str
    current: str
    key: str
    system: str
    driver: str = ""
    what: str = ""
    line: list[str] = field(default_factory=list)
    fruitless: int = 0
    refused: int = 0
    reached: str = ""
    missing_since: float | None = None
    answer: str = ""
    state: str = ""
    cancelled: float | None = None
    submitted: float = 0.0

    def path(self, folder: Path, ending: str) -> Path:
        """Return the path of a file: scripts `sh`, `job`; `log`, `earlier`, `out` (system); marks `status`, `again`."""
        return folder / JOBS / f"{self.key}.{ending}"

    def status(self, folder: Path) -> int | None:
        text = _text(self.path(folder, "status"))
        return int(text) if text.isdigit() else None

    def again(self, folder: Path) -> str | None:
        path = self.path(folder, "again")
        return _text(path) if path.exists() else None

    def save(self, folder: Path) -> None:
        write(folder / JOBS / f"{self.id}.json", json.dumps(asdict(self), indent=1) + "\n")


def load(folder: Path, number: str) -> JobRecord | None:
    return _read(folder / JOBS / f"{number}.json")


def records(folder: Path) -> Iterator[JobRecord]:
    """Yield all jobs that were submitted from a folder."""
    for path in sorted((folder / JOBS).glob("*.json")):
        record = _read(path)
        if record is not None:
            yield record


def write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.replace(path)


def _read(path: Path) -> JobRecord | None:
    try:
        return JobRecord(**parse_json(require_regular_file(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
