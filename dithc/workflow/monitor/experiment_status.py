"""Progress of an experiment's stages, from manifests, logs, the store, the driver's lease and the scheduler's jobs."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dithc.core.artifacts import Lease
from dithc.core.integrity import load_checksummed, require_regular_file
from dithc.core.logging import user_error
from dithc.engine.scheduler import SchedulerJob, get_queue
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.monitor.stage_inspector import StageInspector, asked, read_mapping
from dithc.workflow.monitor.stage_status import DriverInfo, StageStatus, State, joined, span
from dithc.workflow.stages import stages_of

BEGUN: tuple[State, ...] = ("failed", "running", "queued", "stopped")


@dataclass(frozen=True, kw_only=True)
class ExperimentStatus:
    """Status of an experiment, with its active driver, unrelated jobs of its queue, and the path of a current report."""

    name: str
    standings: list[StageStatus]
    driver: DriverInfo | None
    others: list[str]
    report: Path | None

    def count(self, state: State) -> int:
        return sum(standing.state == state for standing in self.standings)

    @property
    def seconds_left(self) -> float | None:
        return max((one.seconds_left for one in self.standings if one.seconds_left is not None), default=None)

    def summary(self) -> str:
        done = f"{self.count('done')} of {len(self.standings)} stages done"
        counts = [f"{self.count(state)} {state}" for state in BEGUN if self.count(state)]
        left = f"about {span(self.seconds_left)} left for running stages" if self.seconds_left else ""
        return f"{self.name}: {joined(done, *counts, left)}"

    @property
    def who(self) -> str:
        driver = self.driver
        return f"driver: process {driver.pid} on {driver.host}" if driver is not None else "no active driver"

    def failures(self) -> list[str]:
        lines = []
        for one in self.standings:
            if one.state == "failed":
                lines += [f"{one.stage.title} failed; log: {one.log or 'none'}", *(f"  | {line}" for line in one.why)]
        return lines

    def as_json(self) -> dict[str, Any]:
        stages = [
            {
                **{key: getattr(one.stage, key) for key in ("kind", "name", "rule", "step", "output")},
                **{key: getattr(one, key) for key in ("state", "words", "when", "seconds", "seconds_left", "why")},
                "log": str(one.log) if one.log is not None else None,
                **({"training": asdict(one.training)} if one.training is not None else {}),
            }
            for one in self.standings
        ]
        return {
            "name": self.name,
            "stages": stages,
            "driver": asdict(self.driver) if self.driver is not None else None,
            "others": self.others,
            "report": str(self.report) if self.report is not None else None,
            "seconds_left": self.seconds_left,
        }


class ExperimentMonitor:
    """Read-only view of `results/NAME`; raises UserError without a readable configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._text: str | None = None
        self.matrix = self._read()
        self.queue = get_queue(self.matrix.experiment.machine.scheduler)

    def jobs(self) -> list[SchedulerJob]:
        """Return this experiment's jobs in the queue, including the ends of finished jobs."""
        if (queue := self.queue) is None:
            return []
        name = read_mapping(self.folder / "driver.json").get("name")
        jobs = [job for job in queue.jobs(self.base) if name is None or job.name == name]
        ended = [job.id for job in jobs if not job.active and job.state != "COMPLETED"]
        ends = {job.id: job for job in queue.ended(ended)} if ended else {}
        return [replace(ends[job.id], what=job.what or ends[job.id].what) if job.id in ends else job for job in jobs]

    @property
    def driver(self) -> DriverInfo | None:
        holder = Lease(self.folder).holder()
        if holder is None or not isinstance(holder["id"], int):
            return None
        return DriverInfo(host=holder["host"], pid=holder["pid"], began=holder["id"] / 1e9)

    def look(self, jobs: list[SchedulerJob] | None = None, *, since: float = 0.0) -> ExperimentStatus:
        """Return the state of every stage.

        `jobs` defaults to the scheduler's; logs older than `since` (seconds since 1970), such as of earlier drivers, are ignored.
        """
        self.matrix = self._read()
        found = self.jobs() if jobs is None else jobs
        driver = self.driver
        stages = stages_of(self.matrix)
        look = StageInspector(
            self.matrix, self.base, stages=stages, jobs=found, queue=self.queue, driver=driver, since=since
        )
        standings = [look.at(stage) for stage in stages]
        report = self.base / self.matrix.root / "report.html"
        # An active driver may rebuild an earlier report.
        is_new = driver is None or (report.exists() and report.stat().st_mtime >= driver.began)
        is_last = is_new and all(one.state == "done" for one in standings)
        matched = {job.id for job in look.matched.values()}
        others = [f"{job.title}: {asked(job)}" for job in found if job.active and job.id not in matched]
        name, current = self.matrix.experiment.name, report if is_last else None
        return ExperimentStatus(name=name, standings=standings, driver=driver, others=others, report=current)

    @property
    def base(self) -> Path:
        """Working folder, to which the configuration's paths are relative."""
        parts = Path(self.matrix.root).parts
        here = self.folder.resolve()
        return Path(*here.parts[: -len(parts)]) if here.parts[-len(parts) :] == parts else Path.cwd()

    def _read(self) -> ExperimentGraph:
        path = self.folder / "config.json"
        try:
            text = require_regular_file(path).read_text(errors="replace")
        except OSError as error:
            raise user_error(
                f"no status of {self.folder}",
                got=f"{path}: {error.strerror}",
                expected="a folder results/NAME of a started experiment",
                fix="check the path; the first job creates the folder",
            ) from None
        if text != self._text:
            try:
                content = load_checksummed(text)
                if not content.keys() >= {"datasets", "runs"}:
                    raise ValueError("the keys `datasets` and `runs` are missing")
            except ValueError as error:
                raise user_error(
                    f"{path} was changed after it was written",
                    got=error,
                    expected="the bytes that dithc wrote",
                    fix="delete it and start the experiment again, which writes it",
                ) from None
            self._text, self._matrix = text, ExperimentGraph(content)
        return self._matrix
