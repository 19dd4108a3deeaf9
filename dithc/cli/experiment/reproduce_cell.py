"""Execution of one cell of `dithc reproduce`, exclusive on the machine if it measures, and its result file."""

import fcntl
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.core.caches import TUNING_VARIABLE
from dithc.core.logging import get_logger, user_error
from dithc.core.processes import STOPPED

if TYPE_CHECKING:
    from dithc.workflow import reproduction

log = get_logger(__name__)


def run_cell(job: "reproduction.CellJob", out: Path) -> int:
    """Run the cell's command and write the measured values, with predicted and actual seconds.

    A stopped cell keeps its measurements in a hidden folder next to `out`. The same command resumes from them.
    """
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed

    if job.skipped:
        expected, fix = "a cell that runs here", "remove the reason"
        raise user_error(f"the cell {job.name} of {job.target}", got=job.skipped, expected=expected, fix=fix)
    with _alone() if job.measures else nullcontext():
        environment = _environment(job)
        if _is_complete(job, out, environment):
            log.info("%s %s was completed by another process", job.target, job.name)
            return 0
        log.info("%s %s: predicted %.0f s: %s", job.target, job.name, job.seconds, job.command)
        work = out.parent / f".{out.stem}"
        work.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        with _errors_of(job.words[0]) as messages:
            status = _run(job, work / f"{job.name}.json", tuning=out.parent / "tuning" / job.tuning)
        seconds = time.monotonic() - start
        result, reason = _result(work / f"{job.name}.json")
        if status >= STOPPED:  # these statuses require a restart
            return status
        if result is None and status and job.columns:
            reason = f"{messages[-1] if messages else 'see its log'} (`{job.command}` ended with status {status})"
            if status not in (1, 2):
                return status
        log.info("%s %s: took %.0f s, predicted %.0f s", job.target, job.name, seconds, job.seconds)
        content = {
            "target": job.target,
            "cell": job.name,
            "command": job.command,
            "digest": job.digest,
            "environment": environment,
            "predicted_seconds": job.seconds,
            "seconds": seconds,
            "status": status,
            "reason": reason,
            "result": result,
        }
        outputs.write(out, dump_checksummed(content, allow_nan=True))
        for path in work.iterdir():
            path.unlink()
        work.rmdir()
    return 0


@contextmanager
def _errors_of(command: str) -> Iterator[list[str]]:
    """Yield a list that receives the title and the `got` line of each user error, or the first line of another error."""
    messages, logger = list[str](), get_logger(f"dithc.{command}")

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            title, _, details = record.getMessage().partition("\n")
            got = re.match(r"\s*got:\s+(.+)", details)
            messages.append(f"{title}: {got[1]}" if got else title)
        return True

    logger.addFilter(keep)
    try:
        yield messages
    finally:
        logger.removeFilter(keep)


def _run(job: "reproduction.CellJob", file: Path, *, tuning: Path) -> int:
    from dithc.cli import main
    from dithc.workflow import reproduction

    if job.tuning:
        os.environ[TUNING_VARIABLE] = str(tuning)
    try:
        return main([str(file) if argument == reproduction.OUT else argument for argument in job.words])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def _result(file: Path) -> tuple[Any, str]:
    """Return the content of a command's result file, or None and the error."""
    from dithc.core.integrity import load_document

    if not file.exists():
        return None, ""
    try:
        return load_document(file.read_text(encoding="utf-8")), ""
    except ValueError as error:
        return None, str(error)


def _environment(job: "reproduction.CellJob") -> dict[str, Any]:
    """Return the environment of a measurement as JSON values; empty for a simulation, which does not depend on it."""
    if not job.measures:
        return {}
    from dithc.bench import environment as record

    return record.environment()


def _is_complete(job: "reproduction.CellJob", out: Path, environment: dict[str, Any]) -> bool:
    """Test whether another process has written this cell in the same environment."""
    from dithc.core.artifacts import difference

    cell, _ = _result(out)
    if not isinstance(cell, dict) or cell.get("digest") != job.digest:
        return False
    if differing := difference(cell.get("environment"), environment):
        log.warning("discarding %s: the environment changed: %s", out, differing)
    return not differing


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other cell measures on this machine."""
    path = Path(tempfile.gettempdir()) / f"dithc-measures-{os.getuid()}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another cell measures on this machine: waiting for its end (%s)", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
