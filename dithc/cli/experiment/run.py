"""`dithc run`: runs an experiment through Snakemake and shows its stages."""

import argparse
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dithc.cli.experiment.live_display import LiveDisplay
    from dithc.engine.scheduler import SchedulerJob
    from dithc.workflow import ExperimentMonitor, ExperimentStatus, RunSummary, SnakemakeProcess

SUMMARY = "Runs an experiment by Snakemake and shows its stages. Snakemake's output goes to a file next to their logs."
EXAMPLE = "dithc run --profile profiles/local --configfile config/experiments/demo.yaml"
# Arguments with which Snakemake runs no jobs, so that the user wants its output.
NO_RUN = re.compile(
    r"-[a-zA-Z]*n[a-zA-Z]*|--(dry-?run|unlock|lint|list.*|summary|.*summary|report|dag|rulegraph|filegraph|help)(=.*)?"
    r"|-h|-l"
)
MACHINE = re.compile(r"--(profile|workflow-profile|cores|jobs|executor)\b|-[cje]")  # arguments that replace --profile
POLL_SECONDS, QUEUE_SECONDS, READ_SECONDS = 1.0, 15.0, 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", metavar="FOLDER", help="profile of the machine, such as profiles/local or cluster")
    files = "configuration of the experiment, then files that override it"
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], metavar="FILE", help=files)
    parser.add_argument("--verbose", action="store_true", help="show the output of Snakemake instead of the stages")
    arguments_help = "after `--`: targets, and options of Snakemake"
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help=arguments_help)


def run(args: argparse.Namespace) -> int:
    from dithc.cli.experiment.live_display import LiveDisplay
    from dithc.workflow import SnakemakeProcess

    _check_folders()
    snakemake_arguments = args.words[1:] if args.words[:1] == ["--"] else args.words
    _check_profile(args.profile, snakemake_arguments)
    folder = _results(args.configfile, snakemake_arguments)
    arguments = [*snakemake_arguments, *(["--profile", args.profile] if args.profile else [])]
    arguments += ["--configfile", *map(str, args.configfile)] if args.configfile else []
    log = folder / "logs" / f"snakemake-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    screen = LiveDisplay(ignores_close=True)
    with SnakemakeProcess(arguments, log=log) as engine:
        if args.verbose or any(NO_RUN.fullmatch(one) for one in snakemake_arguments):
            return _pass_through(engine, screen, report=folder / "report.html" if args.verbose else None)
        return _Follower(engine, folder, screen).follow()


def _check_folders() -> None:
    """Raise UserError if a folder in which Snakemake stores its records is not writable."""
    from dithc.core.caches import cache_home, is_writable
    from dithc.core.logging import user_error

    if not is_writable(Path.cwd()):
        fix = "start in a writable folder that has Snakefile, workflow, config and profiles (links or copies)"
        raise user_error("working folder", got=f"{Path.cwd()} is not writable", expected="a writable folder", fix=fix)
    if cache_home() is None:
        fix = "set XDG_CACHE_HOME or TMPDIR to a writable folder"
        raise user_error("cache of Snakemake", got="no writable folder", expected="a writable folder", fix=fix)


def _check_profile(profile: str | None, snakemake_arguments: list[str]) -> None:
    """Raise UserError for a profile that does not exist, and for a run without a profile or number of cores."""
    from dithc.core.logging import user_error

    bases = (
        Path(),
        Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "snakemake").expanduser(),
        Path("/etc/xdg/snakemake"),
    )
    folders = sorted(file.parent for file in Path("profiles").glob("*/config*.yaml") if file.parent.name != "default")
    profiles = ", ".join(map(str, folders)) or "profiles/local"
    is_complete = any(MACHINE.match(one) or NO_RUN.fullmatch(one) for one in snakemake_arguments)
    if profile is not None and not any((base / profile).is_dir() for base in bases):
        fix = "pass one of them, or write one: dithc doctor --write-profile NAME"
        raise user_error("the profile does not exist", got=profile, expected=f"a folder, such as {profiles}", fix=fix)
    if profile is None and "SNAKEMAKE_PROFILE" not in os.environ and not is_complete:
        fix = "add --profile profiles/local"
        raise user_error(
            "the machine is not specified", got="no --profile", expected=f"a profile, such as {profiles}", fix=fix
        )


def _results(files: list[Path], arguments: list[str]) -> Path:
    """Return the experiment's output folder, given its files and `name=` or `results=` among the arguments."""
    from dithc.config import load, load_experiment

    experiment = load_experiment(files)
    if overrides := dict(one.split("=", 1) for one in arguments if one.startswith(("name=", "results="))):
        experiment = load({**experiment.model_dump(mode="json"), **overrides})
    return Path(experiment.results, experiment.name)


def _pass_through(engine: "SnakemakeProcess", screen: "LiveDisplay", *, report: Path | None) -> int:
    while True:
        status = engine.status
        lines = [*_drain(engine.notices), *engine.new_lines()]
        if lines:
            screen.write(*lines)
        if status is not None:
            if status == 0 and report is not None and report.exists():
                screen.write(f"report: {report.resolve()}")
            return status
        time.sleep(READ_SECONDS)


def _drain(notices: list[str]) -> list[str]:
    return [notices.pop(0) for _ in range(len(notices))]


class _Follower:
    """Display of stages as they start, end and fail, then of the report or the reason for its absence."""

    def __init__(self, engine: "SnakemakeProcess", folder: Path, screen: "LiveDisplay") -> None:
        from dithc.workflow import EventReporter, OutputFilter

        self.engine, self.folder, self.screen = engine, folder, screen
        self.filter, self.reporter = OutputFilter(width=screen.width), EventReporter(beats=not screen.is_terminal)
        self.progress: ExperimentMonitor | None = None
        self.status: ExperimentStatus | None = None
        self.jobs: list[SchedulerJob] = []
        self.start = time.time()
        self.driver_start = self.last_poll = self.last_queue_poll = 0.0

    def follow(self) -> int:
        from dithc.workflow import format_status

        self.screen.write(f"{self.folder}: Snakemake is planning; its output: {self.engine.log}")
        while True:
            code = self.engine.status  # before the last poll, so that the poll covers all events
            lines = [*_drain(self.engine.notices), *self.filter.of(self.engine.new_lines())]
            is_due = time.time() - self.last_poll >= POLL_SECONDS
            lines += self._poll(has_ended=code is not None) if is_due or code is not None else []
            if lines:
                self.screen.write(*lines)
            if code is not None:
                self._end(code)
                return code
            if self.screen.is_terminal and self.status is not None and (is_due or lines):
                size = {"width": self.screen.width or 80, "height": (self.screen.height or 24) // 2}
                self.screen.show(format_status(self.status, **size, color=True, only_active=True))
            time.sleep(READ_SECONDS)

    def _poll(self, *, has_ended: bool) -> list[str]:
        """Return the events since the last poll; empty until Snakemake works on the experiment."""
        from dithc.core.logging import UserError
        from dithc.workflow import ExperimentMonitor

        self.last_poll = time.time()
        if self.progress is None:
            if not (self.folder / "config.json").exists() or not (self.folder / "lease.json").exists():
                return []
            try:
                progress = ExperimentMonitor(self.folder)
            except UserError:  # status of an older run; the driver of this run replaces it
                return []
            driver = progress.driver
            if driver is None or driver.pid != self.engine.pid:
                return []
            self.progress, self.driver_start = progress, driver.started_at
        if has_ended or time.time() - self.last_queue_poll >= QUEUE_SECONDS:
            self.last_queue_poll, self.jobs = time.time(), self.progress.jobs()
        is_first = self.status is None
        self.status = self.progress.poll(self.jobs, since=self.driver_start)
        begin = f"{self.status.name}: {self.status.count('done')} of {len(self.status.stages)} stages are done"
        return ([begin] if is_first else []) + self.reporter.events(self.status, since=self.driver_start)

    def _end(self, code: int) -> None:
        """Print the outcome with the path of the report, or the failure and its fix."""
        status, log, lines = self.status, self.engine.log, list[str]()
        if code == 0:
            lines += self._summary()
        elif fault := self.engine.fault():
            lines += fault
        elif self.engine.stopped_by is not None:
            lines += [f"stopped by {self.engine.stopped_by}: saved work is kept; rerun the same command to continue"]
        else:
            lines += self._failure()
        report = self.folder / "report.html"
        is_there = report.exists() if status is None else status.report is not None
        lines += [f"report: {report.resolve()}"] if code == 0 and is_there else []
        lines += [f"Snakemake's output: {log}"] if code else []
        self.screen.write(*lines)

    def _summary(self) -> list[str]:
        if (end := self._run_summary()) is None:
            return ["nothing to do: all requested outputs are complete"]
        return end.summary(warned=self.filter.driver, since=self.driver_start, seconds=time.time() - self.start)

    def _failure(self) -> list[str]:
        has_error, end = self.filter.has_error, self._run_summary()
        failure = [] if end is None else end.failure(self.engine.ended(), already_reported=has_error)
        if failure or has_error:
            return failure
        return ["Snakemake failed; its last lines:", *(f"  | {line}" for line in self.engine.last_lines())]

    def _run_summary(self) -> "RunSummary | None":
        from dithc.workflow import RunSummary

        if self.status is None or self.progress is None:
            return None
        return RunSummary(self.progress, self.status, width=self.screen.width)
