"""Driver of an experiment: checks before the first job, monitoring of waiting jobs, reports of failures."""

import atexit
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

from dithc.core.artifacts import Lease, atomic_write
from dithc.core.logging import get_logger, setup_logging, user_error
from dithc.engine.scheduler import SchedulerJob, SchedulerQueue, explain_blocked, explain_end, get_queue, slurm
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.jobs import JobResources
from dithc.workflow.monitor import error_of, read_mapping, tail
from dithc.workflow.stages import MANIFESTS

POLL_SECONDS, POLL_VARIABLE = 15.0, "DITHC_POLL_SECONDS"  # polling interval of the queue
# Polling interval of the Slurm plugin, and its increment after each poll without a finished job.
PAUSE, PAUSE_INCREMENT_SECONDS = "next_seconds_between_status_checks", 10.0
LAST_LINES = 12
# Messages of sbatch for a refusal that ends by itself: a limit on submitted jobs, or a controller that restarts.
REFUSED = re.compile("MaxSubmit|temporarily unable|Unable to contact slurm controller|Slurm controller not responding")
REFUSED_SECONDS = 30.0  # pause before the next submission
LOCAL = "local"
log = get_logger("dithc.workflow")


class Driver:
    """The process that submits or runs the jobs of an experiment, one driver at a time.

    A second driver is rejected while the first is active. The successor of a killed driver waits for its submitted jobs, so
    that no work is repeated.
    """

    def __init__(self, graph: ExperimentGraph, jobs: JobResources) -> None:
        self.graph, self.jobs = graph, jobs
        self.folder = Path.cwd()
        self.record = Path(graph.root) / "driver.json"
        self.name: str | None = None
        self.engine: Any = None
        self.queue = get_queue(jobs.machine.scheduler)
        self._reported: set[tuple[str, str]] = set()
        self._history: dict[str, SchedulerJob] = {}
        self._stop = threading.Event()

    def start(self, planned: list[tuple[str, str]], *, executor: str, name: str, engine: Any) -> None:
        """Start before the first job; `planned` has rule and name (dataset, run ...) of every job that will run.

        UserError if another driver is active, the profile lacks the node size, or a job can never start.
        """
        setup_logging()
        if executor != LOCAL and self.queue is None:
            raise user_error(
                "the profile does not describe the nodes of the cluster",
                got=f"executor {executor}, and `machine` has scheduler: none",
                expected="machine={scheduler: ..., cpus_per_node: ..., cpus_per_rank: ..., ...} in the profile",
                fix="run `dithc doctor --write-profile NAME` on the login node",
            )
        self._acquire_lease()
        if executor != LOCAL:
            self.check_jobs(planned)
        else:
            self.check_workers(planned)
        self.graph.write_config()
        if self.queue is None or executor == LOCAL:
            return
        self._wait_for_earlier_jobs(self.queue)
        self.engine, self.name = engine, name
        if self.jobs.machine.scheduler == "slurm":
            self._resubmit_refused(engine)
        atomic_write(self.record, json.dumps({"name": name, "started_at": time.time()}) + "\n")
        threading.Thread(target=self._watch, args=(self.queue,), name="watch", daemon=True).start()

    def check_jobs(self, planned: list[tuple[str, str]]) -> None:
        """Log reduced requests of planned jobs (rule, name); raises UserError if a job can never start."""
        for line in self.jobs.check([(MANIFESTS.get(rule, rule), name) for rule, name in planned]):
            log.warning(line)

    def check_workers(self, planned: list[tuple[str, str]]) -> None:
        """Raise UserError if planned jobs (rule, name) that wait for each other cannot run on this machine together."""
        self.jobs.check_workers([name for rule, name in planned if MANIFESTS.get(rule, rule) == "train"])

    def failed(self) -> None:
        self._stop.set()
        if self.queue is None or self.name is None:
            return
        self._poll(self.queue)
        for job in self.queue.ended(list(self._history)):
            if not job.active and job.state != "COMPLETED":
                log.error(self._failure_message(job, self.queue))

    def _acquire_lease(self) -> None:
        folder = Path(self.graph.root)
        folder.mkdir(parents=True, exist_ok=True)
        lease = Lease(folder, wait_seconds=0.0)
        try:
            lease.__enter__()
        except Lease.Held as error:
            raise user_error(
                f"another driver is active for experiment {self.graph.experiment.name!r}",
                got=str(error).partition("\n")[0],
                expected="one driver at a time",
                fix="wait for its end, or end it (Ctrl-C); the lease of a driver killed on another host expires after 45 s",
            ) from None
        atexit.register(lease.__exit__, None, None, None)

    def _wait_for_earlier_jobs(self, queue: SchedulerQueue) -> None:
        earlier, reported = read_mapping(self.record).get("name"), set[str]()
        while earlier and (jobs := [job for job in queue.jobs(self.folder) if job.active and job.name == earlier]):
            if {job.id for job in jobs} != reported:
                reported = {job.id for job in jobs}
                names = ", ".join(f"{job.id} ({job.title}, {job.state.lower()})" for job in jobs)
                fix = "waiting for them; `scancel` them to continue now"
                log.info(f"jobs of an earlier driver are in the queue: {names}; {fix}")
            self._warn_of_blocked(jobs)
            time.sleep(min(_poll_seconds(), 5.0))

    def _resubmit_refused(self, engine: Any) -> None:
        """Let the Slurm plugin submit a job again that Slurm refuses for a time; the plugin would report it as failed."""
        report, pause = engine._report_job_error_threadsafe, min(REFUSED_SECONDS, 2 * _poll_seconds())

        def report_or_resubmit(info: Any, message: str) -> None:
            refusal = REFUSED.search(message) if info.external_jobid is None else None
            if refusal is None or self._stop.is_set():
                report(info, message)
                return
            if ("submission", refusal.group()) not in self._reported:
                self._reported.add(("submission", refusal.group()))
                lines = [line for line in message.splitlines() if refusal.group() in line]
                log.warning(
                    f"Slurm refuses jobs for now, they are submitted again every {pause:.0f} s: {lines[0].strip()}"
                )
            self._stop.wait(pause)  # on the thread of submissions
            engine._job_submission_executor.submit(engine.run_job, info.job)

        engine._report_job_error_threadsafe = report_or_resubmit

    def _watch(self, queue: SchedulerQueue) -> None:
        interval = _poll_seconds()
        longest = interval - PAUSE_INCREMENT_SECONDS
        while not self._stop.wait(interval):
            # The plugin backs off to one poll every three minutes. A finished job would delay its successors that long.
            if getattr(self.engine, PAUSE, 0) > longest:
                setattr(self.engine, PAUSE, longest)
            try:
                self._poll(queue)
            except Exception as error:  # an error in monitoring must not end the workflow
                log.debug("watch: %r", error)

    def _poll(self, queue: SchedulerQueue) -> None:
        jobs = [job for job in queue.jobs(self.folder) if job.name == self.name]
        self._history |= {job.id: job for job in jobs}
        self._warn_of_blocked(jobs)
        for job in jobs:
            # If Slurm cancels preempted jobs, it does not requeue them.
            if self.jobs.machine.scheduler == "slurm" and job.state == "PREEMPTED" and self._is_first(job, job.state):
                log.info(f"job {job.id} ({job.title}) was preempted: requeueing it")
                slurm.requeue(job.id)
            if job.state == "CANCELLED" and self._is_first(job, "CANCELLED"):
                fix = "if this driver keeps waiting for it, end it and start again"
                log.warning(f"job {job.id} ({job.title}) was canceled; {fix}")

    def _warn_of_blocked(self, jobs: list[SchedulerJob]) -> None:
        for job in jobs:
            entry = explain_blocked(job)
            if entry is not None and self._is_first(job, job.reason):
                log.warning(f"job {job.id} ({job.title}) cannot start: {entry[0]} ({job.reason}); fix: {entry[1]}")

    def _is_first(self, job: SchedulerJob, event: str) -> bool:
        is_first = (job.id, event) not in self._reported
        self._reported.add((job.id, event))
        return is_first

    def _failure_message(self, job: SchedulerJob, queue: SchedulerQueue) -> str:
        (cause, fix), path, title = explain_end(job), queue.log(self.folder, job), self._history[job.id].title
        end = f"{job.state} {job.reason}".strip() + (f", status {job.status}" if job.status else "")
        end += (f" on {job.nodes}" if job.nodes else "") + f" after {job.elapsed}"
        lines = [f"job {job.id} ({title}) ended: {end}", f"  why: {cause}", f"  log: {path or 'none'}"]
        last = tail(path) if path is not None else []
        lines += [f"    | {line}" for line in error_of(last) or last[-LAST_LINES:]]
        return "\n".join([*lines, f"  fix: {fix}"])


def _poll_seconds() -> float:
    setting = os.environ.get(POLL_VARIABLE) or f"{POLL_SECONDS}"
    if not re.fullmatch(r"\d+(\.\d+)?", setting):
        log.warning(f"{POLL_VARIABLE}={setting} is not a number of seconds; using {POLL_SECONDS:g} s")
        return POLL_SECONDS
    return max(0.5, float(setting))
