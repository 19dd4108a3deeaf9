"""Progress of an experiment's stages, from manifests, logs, the store, the driver's lease and the scheduler's jobs."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dithc.core.artifacts import Lease
from dithc.core.integrity import load_checksummed, require_regular_file
from dithc.core.logging import user_error
from dithc.engine.scheduler import SchedulerJob, get_queue
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.monitor.stage_inspector import StageInspector, describe_job, read_mapping
from dithc.workflow.monitor.stage_status import DriverInfo, StageStatus, State, joined, span
from dithc.workflow.stages import stages_of

REPORTED_STATES: tuple[State, ...] = ("failed", "running", "queued", "stopped")


@dataclass(frozen=True, kw_only=True)
class ExperimentStatus:
    """Status of an experiment, with its active driver, unrelated jobs of its queue, and the path of a current report."""

    name: str
    stages: list[StageStatus]
    driver: DriverInfo | None
    unmatched_jobs: list[str]
    report: Path | None

    def count(self, state: State) -> int:
        return sum(status.state == state for status in self.stages)

    @property
    def eta_seconds(self) -> float | None:
        return max((status.eta_seconds for status in self.stages if status.eta_seconds is not None), default=None)

    def summary(self) -> str:
        progress = f"{self.count('done')} of {len(self.stages)} stages done"
        counts = [f"{self.count(state)} {state}" for state in REPORTED_STATES if self.count(state)]
        remaining = f"about {span(self.eta_seconds)} left for running stages" if self.eta_seconds else ""
        return f"{self.name}: {joined(progress, *counts, remaining)}"

    @property
    def driver_text(self) -> str:
        driver = self.driver
        return f"driver: process {driver.pid} on {driver.host}" if driver is not None else "no active driver"

    def failures(self) -> list[str]:
        lines = []
        for status in self.stages:
            if status.state == "failed":
                lines += [f"{status.stage.title} failed; log: {status.log or 'none'}"]
                lines += [f"  | {line}" for line in status.error_lines]
        return lines

    def as_json(self) -> dict[str, Any]:
        stages = [
            {
                **{key: getattr(status.stage, key) for key in ("kind", "name", "rule", "step", "output")},
                **{
                    key: getattr(status, key)
                    for key in ("state", "message", "finished_at", "seconds", "eta_seconds", "error_lines")
                },
                "log": str(status.log) if status.log is not None else None,
                **({"training": asdict(status.training)} if status.training is not None else {}),
            }
            for status in self.stages
        ]
        return {
            "name": self.name,
            "stages": stages,
            "driver": asdict(self.driver) if self.driver is not None else None,
            "unmatched_jobs": self.unmatched_jobs,
            "report": str(self.report) if self.report is not None else None,
            "eta_seconds": self.eta_seconds,
        }


class ExperimentMonitor:
    """Read-only view of `results/NAME`; raises UserError without a readable configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._text: str | None = None
        self.graph = self._load_graph()
        self.queue = get_queue(self.graph.experiment.machine.scheduler)

    def jobs(self) -> list[SchedulerJob]:
        """Return this experiment's jobs in the queue, including the ends of finished jobs."""
        if (queue := self.queue) is None:
            return []
        record, driver = read_mapping(self.folder / "driver.json"), self.driver
        name = record.get("name")
        jobs = [job for job in queue.jobs(self.base) if name is None or job.name == name]
        if driver is not None and float(record.get("started_at", 0)) < driver.started_at:
            jobs = [job for job in jobs if job.active]  # ended jobs of an earlier driver are not failures of this one
        ended_ids = [job.id for job in jobs if not job.active and job.state != "COMPLETED"]
        ends = {job.id: job for job in queue.ended(ended_ids)} if ended_ids else {}
        return [
            replace(ends[job.id], comment=job.comment or ends[job.id].comment) if job.id in ends else job
            for job in jobs
        ]

    @property
    def driver(self) -> DriverInfo | None:
        holder = Lease(self.folder).holder()
        if holder is None or not isinstance(holder["id"], int):
            return None
        return DriverInfo(host=holder["host"], pid=holder["pid"], started_at=holder["id"] / 1e9)

    def poll(self, jobs: list[SchedulerJob] | None = None, *, since: float = 0.0) -> ExperimentStatus:
        """Return the state of every stage.

        `jobs` defaults to the scheduler's; logs older than `since` (seconds since 1970), such as of earlier drivers, are ignored.
        """
        self.graph = self._load_graph()
        listing = self.jobs() if jobs is None else jobs
        driver = self.driver
        stages = stages_of(self.graph)
        inspector = StageInspector(
            self.graph, self.base, stages=stages, jobs=listing, queue=self.queue, driver=driver, since=since
        )
        statuses = [inspector.inspect(stage) for stage in stages]
        report = self.base / self.graph.root / "report.html"
        # An active driver may rebuild an earlier report.
        is_new = driver is None or (report.exists() and report.stat().st_mtime >= driver.started_at)
        is_last = is_new and all(status.state == "done" for status in statuses)
        matched = {job.id for job in inspector.matched.values()}
        unmatched = [f"{job.title}: {describe_job(job)}" for job in listing if job.active and job.id not in matched]
        name, current = self.graph.experiment.name, report if is_last else None
        return ExperimentStatus(name=name, stages=statuses, driver=driver, unmatched_jobs=unmatched, report=current)

    @property
    def base(self) -> Path:
        """Working folder, to which the configuration's paths are relative."""
        parts = Path(self.graph.root).parts
        resolved = self.folder.resolve()
        return Path(*resolved.parts[: -len(parts)]) if resolved.parts[-len(parts) :] == parts else Path.cwd()

    def _load_graph(self) -> ExperimentGraph:
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
            self._text, self._graph = text, ExperimentGraph(content)
        return self._graph
