"""Files of the generic executor in `.snakemake/dithc-jobs`: record, scripts, log and markers of each job."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dithc.core.integrity import parse_json, require_regular_file

JOBS = Path(".snakemake/dithc-jobs")


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job of the workflow engine over all its submissions; times are in seconds since 1970."""

    id: str  # number of its first submission, which the engine uses
    current: str  # number of its latest submission
    key: str  # prefix of its file names
    system: str
    driver: str = ""  # that submitted or last queried it
    comment: str = ""
    line: list[str] = field(default_factory=list)  # submit command
    fruitless: int = 0  # consecutive submissions without progress
    rejections: int = 0  # consecutive resubmissions that the system refused
    reached: str = ""  # progress at the last stop
    missing_since: float | None = None  # it became unknown to the system
    outcome: str = ""  # `success` or `failed` once final
    state: str = ""  # final state in Slurm's terms
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
    return _read_record(folder / JOBS / f"{number}.json")


def records(folder: Path) -> list[JobRecord]:
    entries = map(_read_record, sorted((folder / JOBS).glob("*.json")))
    return [record for record in entries if record is not None]


def write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.replace(path)


def _read_record(path: Path) -> JobRecord | None:
    try:
        return JobRecord(**parse_json(require_regular_file(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
