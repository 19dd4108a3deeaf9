"""Submission, status and cancellation of jobs for Snakemake's `cluster-generic` executor, on any system of `batch_systems`.

    dithc-job-submit SYSTEM [site options] JOBSCRIPT      prints the number of the job
    dithc-job-status NUMBER                               prints running, success or failed
    dithc-job-cancel NUMBER ...

Snakemake sees one job per submission chain. The status command resubmits a job that requested it (`mark_again`), or that was
preempted or lost with its node.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import time as now
from time import time_ns
from typing import Any

from dithc.core.logging import UserError, escaping, user_error
from dithc.core.processes import STOPPED
from dithc.engine.scheduler.batch_systems import SYSTEMS, JobRequest
from dithc.engine.scheduler.job_records import JOBS, JobRecord, load
from dithc.engine.scheduler.queue import SchedulerJob
from dithc.engine.scheduler.status_query import job_of
from dithc.engine.scheduler.subprocesses import run_command

DRIVER, SYSTEM = "DITHC_DRIVER_NAME", "DITHC_BATCH_SYSTEM"
PREFIXES = ("DITHC_", "HCOPS_", "MPI4PY_")  # prefixes of variables that systems may not pass to jobs
LOST_STATES = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"})
LOST_SECONDS = 120.0  # a job unknown to its system for this time is lost
MAX_FRUITLESS = 20
MAX_REJECTED = 30

SCRIPT = """#!/bin/bash
# {comment}
cd {folder} || exit 1
[ ! -e {log} ] || cat {log} >> {earlier}
exec > {log} 2>&1
rm -f {status} {again}
export DITHC_REQUEUE_FILE={again} DITHC_DEADLINE=$(( $(date +%s) + {seconds} ))
{carried}
echo "=== $(date '+%F %T') on $(hostname)"
trap : TERM INT USR1 USR2
/bin/sh {job}
code=$?
[ $code = 0 ] || [ ! -e {again} ] || code={stopped}
echo $code > {status}.new && mv {status}.new {status}
exit $code
"""


def submit(words: Sequence[str], *, folder: Path) -> str:
    """Submit the engine's job script and return the job's number.

    `words` are the name of the system (default: DITHC_BATCH_SYSTEM), options of its submit command, and the script.
    UserError if the system is unknown, the script requests no memory or time, or the system rejects it.
    """
    *options, script = words
    name = options.pop(0) if options and options[0] in SYSTEMS else os.environ.get(SYSTEM, "")
    if name not in SYSTEMS:
        raise user_error(
            "batch system",
            got=name or "none",
            expected=", ".join(SYSTEMS),
            fix=f"name it first in `cluster-generic-submit-cmd` of the profile, or in {SYSTEM}",
        )
    properties = _properties(Path(script))
    description, title = _job_names(properties)
    driver = os.environ.get(DRIVER, "")
    record = JobRecord(id="", current="", key=f"{title}-{time_ns():x}", system=name, comment=description, driver=driver)
    (folder / JOBS).mkdir(parents=True, exist_ok=True)
    request = _request(properties, record, folder=folder, title=title, options=tuple(options))
    record.path(folder, "job").write_bytes(Path(script).read_bytes())
    request.script.write_text(_script(record, request, folder))
    request.script.chmod(0o755)
    record = replace(record, line=SYSTEMS[name].submit(request), submitted=now())
    number, message = _submit_record(record)
    if number is None:
        raise user_error(
            f"{SYSTEMS[name].title} rejected the job {title}",
            got=message,
            expected="the number of a job",
            fix=f"run the command by hand, and correct the profile: {shlex.join(record.line)}",
        )
    replace(record, id=number, current=number).save(folder)
    return number


def status(number: str, *, folder: Path) -> str:
    """Return `running`, `success` or `failed`; resubmits the job if needed. UserError without a record of the job."""
    record = load(folder, number)
    if record is None:
        raise user_error(
            f"job {number}",
            got=f"no record in {folder / JOBS}",
            expected=f"{number}.json, written when it was submitted",
            fix="start the workflow again, and keep the records while it runs",
        )
    if record.outcome:
        return record.outcome
    record = replace(record, driver=os.environ.get(DRIVER, record.driver))
    code, again = record.status(folder), record.again(folder)
    if record.rejections:
        return _rerun(record, record.state, folder)
    job = job_of(folder, record) if code != 0 else None
    since = (record.missing_since or now()) if job is False else None
    outcome = job_outcome(status=code, again=again is not None, job=job, missing=now() - since if since else 0.0)
    state = job.state if isinstance(job, SchedulerJob) else "COMPLETED" if code == 0 else ""
    if outcome == "again":
        return _rerun(replace(record, missing_since=None), state, folder, reached=again)
    if outcome in ("success", "failed"):
        _record_outcome(record, outcome, state, folder)
    elif since != record.missing_since:
        replace(record, missing_since=since).save(folder)
    return outcome


def job_outcome(*, status: int | None, again: bool, job: SchedulerJob | bool | None, missing: float = 0.0) -> str:
    """Return `running`, `success`, `failed`, or `again` to resubmit.

    `status` is of the script, None before its end; `again` if the job requested another run; `job` the system's reply as in
    `job_of`, and `missing` the seconds for which the job has been unknown to it.
    """
    if status == 0:
        return "success"
    if job is None or job is True:
        return "running"
    if job is False:
        if status is not None or again:
            return "again" if again else "failed"
        return "again" if missing >= LOST_SECONDS else "running"
    if job.active:
        return "running"
    if job.state == "CANCELLED":
        return "failed"
    if again or STOPPED in (status, job.status) or job.state in LOST_STATES:
        return "again"
    return "success" if job.state == "COMPLETED" and status is None else "failed"


def cancel(numbers: Sequence[str], *, folder: Path) -> None:
    """Cancel jobs without waiting, because the engine allows two seconds."""
    by_system: dict[str, list[str]] = {}
    for number in numbers:
        record = load(folder, number)
        if record is not None and not record.outcome:
            _record_outcome(replace(record, cancelled=now()), "failed", "CANCELLED", folder)
            by_system.setdefault(record.system, []).append(record.current)
    for system, ids in by_system.items():
        _cancel_jobs(system, ids)


def _record_outcome(record: JobRecord, outcome: str, state: str, folder: Path) -> None:
    replace(record, outcome=outcome, state=state, missing_since=None).save(folder)


def _resubmit(record: JobRecord, folder: Path) -> JobRecord | None:
    for mark in ("status", "again"):
        record.path(folder, mark).unlink(missing_ok=True)
    number, message = _submit_record(record)
    if number is None:
        _print_error(f"job {record.id} was not resubmitted: {message}")
        return None
    now_known = load(folder, record.id)
    if now_known is not None and now_known.cancelled is not None:  # meanwhile
        _cancel_jobs(record.system, [number])
        return now_known
    new = replace(record, current=number, rejections=0, submitted=now(), outcome="", state="")
    new.save(folder)
    return new


def _rerun(record: JobRecord, state: str, folder: Path, *, reached: str | None = None) -> str:
    if not record.rejections:
        is_further = bool(reached) and reached != record.reached
        fruitless = 0 if is_further else record.fruitless + 1
        record = replace(record, fruitless=fruitless, reached=reached or record.reached)
    if record.fruitless > MAX_FRUITLESS or record.rejections >= MAX_REJECTED:
        cause = f"ran {MAX_FRUITLESS} times without progress" if not record.rejections else "was rejected too often"
        _print_error(f"job {record.id} ({record.key}) {cause}: abandoned; log: {record.path(folder, 'log')}")
        _record_outcome(record, "failed", state, folder)
        return "failed"
    new = _resubmit(record, folder)
    if new is None:
        replace(record, rejections=record.rejections + 1, state=state).save(folder)
        return "running"
    cause = "it stopped before its walltime" if reached is not None else f"it ended as {state or 'LOST'}"
    _print_error(
        f"job {record.id} ({record.key}) was resubmitted as {new.current}: {cause}"
        + (f", at {reached}" if reached else "")
    )
    return "failed" if new.outcome else "running"


def _submit_record(record: JobRecord) -> tuple[str | None, str]:
    """Return the number of a newly submitted job, or the reason of a refusal."""
    completed = run_command(record.line)
    number = SYSTEMS[record.system].parse_number(completed.stdout) if completed.returncode == 0 else None
    return number, (completed.stderr or completed.stdout).strip() or f"status {completed.returncode}"


def _cancel_jobs(system: str, ids: Sequence[str]) -> None:
    subprocess.Popen(
        [*SYSTEMS[system].cancel, *ids],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _properties(script: Path) -> dict[str, Any]:
    """Return the job properties that the engine wrote into the script."""
    match = re.search(r"^# properties = (\{.*\})$", script.read_text(), re.MULTILINE)
    if match is None:
        raise user_error(
            f"job script {script}",
            got="no line `# properties = {...}`",
            expected="a job script of Snakemake",
            fix="use Snakemake's own job script (no `jobscript:` in the profile)",
        )
    return dict(json.loads(match.group(1)))


def _job_names(properties: dict[str, Any]) -> tuple[str, str]:
    """Return rule and wildcards in the form of `SchedulerJob.comment`, and a name."""
    if properties.get("type") == "group":
        return f"group_{properties['groupid']}", re.sub(r"\W", "_", f"{properties['groupid']}")
    wildcards = ",".join(f"{key}={value}" for key, value in properties.get("wildcards", {}).items())
    return f"rule_{properties['rule']}" + (f"_wildcards_{wildcards}" if wildcards else ""), str(properties["rule"])


def _request(
    properties: dict[str, Any], record: JobRecord, *, folder: Path, title: str, options: tuple[str, ...]
) -> JobRequest:
    resources = properties["resources"]
    missing = [name for name in ("mem_mb", "runtime") if not isinstance(resources.get(name), int)]
    if missing:
        raise user_error(
            f"job {title}",
            got=f"no {' and no '.join(missing)}",
            expected="mem_mb and runtime, from its rule or from `default-resources` of the profile",
            fix="add `default-resources: {mem_mb: 4000, runtime: 60}` to the profile",
        )
    return JobRequest(
        name=f"dithc-{title}",
        script=record.path(folder, "sh"),
        out=record.path(folder, "out"),
        nodes=int(resources.get("nodes", 1)),
        tasks=int(resources.get("tasks", 1)),
        cpus=int(resources.get("cpus_per_task", properties["threads"])),
        memory_mb=resources["mem_mb"],
        minutes=resources["runtime"],
        options=options,
    )


def _script(record: JobRecord, request: JobRequest, folder: Path) -> str:
    carried = {key: value for key, value in os.environ.items() if key.startswith(PREFIXES) and "DRIVER" not in key}
    names = ("log", "earlier", "status", "again", "job")
    paths = {name: shlex.quote(str(record.path(folder, name))) for name in names}
    return SCRIPT.format(
        comment=record.comment,
        folder=shlex.quote(str(folder)),
        seconds=60 * request.minutes,
        carried="\n".join(f"export {key}={shlex.quote(value)}" for key, value in sorted(carried.items())),
        stopped=STOPPED,
        **paths,
    )


def _print_error(words: str) -> None:
    sys.stderr.write(f"dithc: {escaping.escaped(words, indent=2)}\n")


def main(words: Sequence[str]) -> int:
    """Run `submit`, `status` or `cancel` in the current folder, and return the exit status."""
    is_help = words[1:2] in (["-h"], ["--help"])
    command, *arguments = words if len(words) > 1 and not is_help else ["", ""]
    folder = Path.cwd()
    try:
        if command == "submit":
            sys.stdout.write(f"{submit(arguments, folder=folder)}\n")
        elif command == "status":
            sys.stdout.write(f"{status(arguments[0], folder=folder)}\n")
        elif command == "cancel":
            cancel(arguments, folder=folder)
        else:
            _print_error("usage: submit SYSTEM [words] SCRIPT, status NUMBER, or cancel NUMBER ...")
            return 0 if is_help else 2
    except UserError as error:
        _print_error(str(error))
        return 2
    return 0


def _command(command: str) -> Callable[[], int]:
    return lambda: main([command, *sys.argv[1:]])


submit_main, status_main, cancel_main = map(_command, ("submit", "status", "cancel"))
