"""Batch systems as data: commands to submit, query and cancel jobs.

All functions are pure: from requests to command lines, and from output to jobs. States use Slurm's terms.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dithc.engine.scheduler import slurm
from dithc.engine.scheduler.queue import SchedulerJob

KILLED = 256  # PBS: the exit status after a signal is this plus the signal number
HELD = "JobHeldUser"
SQUEUE_FORMAT, SACCT_FORMAT = f"--format={slurm.FIELDS}", f"--format={slurm.HISTORY}"


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """Resource request of a job: ranks over all nodes, cores per rank, memory per node, walltime.

    `out` is for output of the system, because the script writes a separate log. `options` are arguments of the site.
    """

    name: str
    script: Path
    out: Path
    nodes: int = 1
    tasks: int = 1
    cpus: int = 1
    memory_mb: int
    minutes: int
    options: tuple[str, ...] = ()

    @property
    def tasks_per_node(self) -> int:
        return -(-self.tasks // self.nodes)

    @property
    def cores_per_node(self) -> int:
        return self.tasks_per_node * self.cpus

    @property
    def clock(self) -> str:
        """Walltime as HH:MM:SS."""
        return f"{self.minutes // 60:02d}:{self.minutes % 60:02d}:00"


class StatusQuery(NamedTuple):
    """A job query: command line from job numbers, and parser of its output."""

    argv: Callable[[Sequence[str]], list[str]]
    read: Callable[[str], list[SchedulerJob]]


@dataclass(frozen=True, kw_only=True)
class BatchSystem:
    """A batch system."""

    title: str
    submit: Callable[[JobRequest], list[str]]
    number: str  # pattern of the job number in the output of `submit`
    queries: tuple[StatusQuery, ...]  # later ones cover jobs that earlier ones do not report
    unknown: tuple[str, ...]  # error texts for an unknown job; any other error counts as a missing reply
    cancel: tuple[str, ...]  # command that accepts job numbers

    def parse_number(self, printed: str) -> str | None:
        match = re.search(self.number, printed, re.MULTILINE)
        return match.group(1) if match else None


def _slurm_submit(request: JobRequest) -> list[str]:
    size = [f"--nodes={request.nodes}", f"--ntasks={request.tasks}", f"--cpus-per-task={request.cpus}"]
    limits = [f"--mem={request.memory_mb}M", f"--time={request.minutes}"]
    files = [f"--output={request.out}", "--open-mode=append", f"--job-name={request.name}"]
    return ["sbatch", "--parsable", "--requeue", *files, *size, *limits, *request.options, str(request.script)]


def _pbs_submit(request: JobRequest) -> list[str]:
    chunk = f"ncpus={request.cores_per_node}:mpiprocs={request.tasks_per_node}:ompthreads={request.cpus}"
    size = ["-l", f"select={request.nodes}:{chunk}:mem={request.memory_mb}mb", "-l", f"walltime={request.clock}"]
    place = ["-l", "place=scatter"] if request.nodes > 1 else []
    files = ["-N", request.name, "-j", "oe", "-o", str(request.out), "-r", "y"]
    return ["qsub", *files, *size, *place, *request.options, str(request.script)]


def _states(**codes: str) -> dict[str, str]:
    """Return the state of each code, from the codes of each state."""
    return {code: state for state, listed in codes.items() for code in listed.split()}


PBS_STATES = _states(PENDING="Q T W H", RUNNING="R B M", COMPLETING="E", SUSPENDED="S U")
# Exit statuses; NODE_FAIL: not started, or the execution host rebooted: retry, initialization, failure of another host.
PBS_ENDED = _states(TIMEOUT="-29 -28", OUT_OF_MEMORY="-27 -26", NODE_FAIL="-3 -4 -5 -6 -14")


def _document(text: str) -> dict[str, Any]:
    """Return the JSON object in a text; empty without one."""
    try:
        return dict(json.loads(text[text.index("{") :], strict=False))
    except ValueError:
        return {}


def _qstat(text: str) -> list[SchedulerJob]:
    return [_pbs_job(number, values) for number, values in _document(text).get("Jobs", {}).items()]


def _pbs_job(number: str, values: dict[str, Any]) -> SchedulerJob:
    letter, exit_status = values.get("job_state", ""), values.get("Exit_status")
    used, limit = (values.get(key, {}).get("walltime", "") for key in ("resources_used", "Resource_List"))
    status = int(exit_status) if exit_status is not None else None
    state = PBS_STATES.get(letter, "RUNNING")
    if letter in ("F", "X", "C"):
        if status is None:  # it ended before its start
            state = "CANCELLED"
        elif status >= KILLED:
            state = "TIMEOUT" if used and limit and _seconds(used) >= _seconds(limit) else "CANCELLED"
            status = 128 + status - KILLED
        else:
            state = PBS_ENDED.get(str(status), "COMPLETED" if status == 0 else "FAILED")
    hosts = dict.fromkeys(re.findall(r"([^/+\s]+)/", values.get("exec_host", "")))
    reason = HELD if letter == "H" else values.get("comment", "") if letter in "QW" else ""
    return SchedulerJob(id=number, state=state, reason=reason, nodes=",".join(hosts), status=status, elapsed=used)


def _seconds(clock: str) -> int:
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + (int(part) if part.isdigit() else 0)
    return seconds


def _lsf_submit(request: JobRequest) -> list[str]:
    slots = ["-n", str(request.nodes * request.cores_per_node), "-R", f"span[ptile={request.cores_per_node}]"]
    limits = ["-R", f"rusage[mem={request.memory_mb}MB/host]", "-W", str(request.minutes)]
    files = ["-J", request.name, "-o", str(request.out), "-r"]
    return ["bsub", *files, *slots, *limits, *request.options, str(request.script)]


LSF_STATES = _states(
    PENDING="PEND WAIT PROV PSUSP", RUNNING="RUN UNKWN", SUSPENDED="USUSP SSUSP", COMPLETED="DONE", NODE_FAIL="ZOMBI"
)
LSF_ENDED = _states(
    TIMEOUT="TERM_RUNLIMIT TERM_CPULIMIT TERM_DEADLINE",
    OUT_OF_MEMORY="TERM_MEMLIMIT TERM_SWAP",
    CANCELLED="TERM_OWNER TERM_FORCE_OWNER TERM_BUCKET_KILL TERM_ADMIN TERM_FORCE_ADMIN",
    PREEMPTED="TERM_PREEMPT TERM_LOAD TERM_WINDOW",
)
LSF_FIELDS = "jobid stat exit_code exit_reason exec_host pend_reason"


def _bjobs(text: str) -> list[SchedulerJob]:
    return [_lsf_job(row) for row in _document(text).get("RECORDS", []) if "STAT" in row]


def _lsf_job(row: dict[str, str]) -> SchedulerJob:
    stat, exit_reason, code = row["STAT"], row.get("EXIT_REASON", ""), row.get("EXIT_CODE", "")
    term = re.search(r"TERM_[A-Z_]+", exit_reason)
    state = LSF_STATES.get(stat) or LSF_ENDED.get(term.group() if term else "", "FAILED")
    hosts = dict.fromkeys(part.rpartition("*")[2] for part in row.get("EXEC_HOST", "").split(":") if part)
    reason = HELD if stat == "PSUSP" else row.get("PEND_REASON", "") if stat == "PEND" else ""
    status = int(code) if code.isdigit() else 0 if stat == "DONE" else None
    return SchedulerJob(id=row["JOBID"], state=state, reason=reason, nodes=",".join(hosts), status=status)


def _fujitsu_submit(request: JobRequest) -> list[str]:
    limits = f"node={request.nodes},elapse={request.clock},node-mem={request.memory_mb}M"
    ranks = f"proc={request.tasks},max-proc-per-node={request.tasks_per_node}"
    size = ["-L", limits, *(["--mpi", ranks] if request.tasks > 1 else [])]
    files = ["--name", request.name, "-j", "-o", str(request.out)]
    return ["pjsub", *files, *size, *request.options, str(request.script)]


FUJITSU_STATES = _states(
    PENDING="ACC QUE HLD",
    RUNNING="RNA RNP RUN",
    COMPLETING="RNE RNO",
    SUSPENDED="SPP SPD RSM",
    FAILED="RJT ERR",
    CANCELLED="CCL",
)
# PJM codes of ended jobs.
FUJITSU_ENDED = _states(
    CANCELLED="1", DEADLINE="7", TIMEOUT="11", OUT_OF_MEMORY="12 23", NODE_FAIL="9 20 22 25", PREEMPTED="18"
)
FUJITSU_FIELDS = ["-v", "--choose", "jid,st,ec,pc,ermsg"]


def _pjstat(text: str) -> list[SchedulerJob]:
    jobs, in_table = [], False
    for line in text.splitlines():
        fields = line.split(None, 4)
        if fields[:2] == ["JOB_ID", "ST"]:
            in_table = True
        elif in_table and len(fields) >= 4:
            number, letters, code, pjm = fields[:4]
            state = FUJITSU_STATES.get(letters) or FUJITSU_ENDED.get(pjm, "COMPLETED" if code == "0" else "FAILED")
            reason = HELD if letters == "HLD" else fields[4].strip("- ") if len(fields) > 4 else ""
            status = int(code) if letters == "EXT" and code.isdigit() else None
            jobs.append(SchedulerJob(id=number, state=state, reason=reason, status=status))
    return jobs


# Slurm was tested on version 22.05 with two nodes, the other systems with recorded and stubbed commands only. Sources: the
# manual pages of the commands; PBS Administrator's Guide, Job Exit Status Codes; IBM Spectrum LSF, Termination reasons and
# release notes 10.1.0.9 (rusage keywords); Fujitsu Job Operation Software End-user's Guide, PJM codes.
SYSTEMS = {
    "slurm": BatchSystem(
        title="Slurm",
        submit=_slurm_submit,
        number=r"^(\d+)",
        queries=(
            StatusQuery(
                lambda ids: ["squeue", "--noheader", "--states=all", f"--jobs={','.join(ids)}", SQUEUE_FORMAT],
                slurm.read_queue,
            ),
            StatusQuery(
                lambda ids: ["sacct", "-X", "-n", "-P", f"--jobs={','.join(ids)}", SACCT_FORMAT],
                slurm.read_accounting,
            ),
        ),
        unknown=("Invalid job id", "accounting storage is disabled"),
        cancel=("scancel",),
    ),
    "pbs": BatchSystem(
        title="PBS Professional, OpenPBS (not Torque)",
        submit=_pbs_submit,
        number=r"^(\d+[\w.\[\]-]*)\s*$",
        queries=(StatusQuery(lambda ids: ["qstat", "-x", "-f", "-F", "json", *ids], _qstat),),
        unknown=("Unknown Job Id", "Unknown Job ID", "has finished"),
        cancel=("qdel",),
    ),
    "lsf": BatchSystem(
        title="IBM Spectrum LSF 10.1.0.9 or later",
        submit=_lsf_submit,
        number=r"Job <(\d+)>",
        queries=(StatusQuery(lambda ids: ["bjobs", "-a", "-json", "-o", LSF_FIELDS, *ids], _bjobs),),
        unknown=("is not found", "No matching job found"),
        cancel=("bkill",),
    ),
    "fujitsu": BatchSystem(
        title="Fujitsu Technical Computing Suite (A64FX)",
        submit=_fujitsu_submit,
        number=r"[Jj]ob (\d+) submitted",
        queries=(
            StatusQuery(lambda ids: ["pjstat", *FUJITSU_FIELDS, *ids], _pjstat),
            StatusQuery(lambda ids: ["pjstat", "-H", "day=7", *FUJITSU_FIELDS, *ids], _pjstat),
        ),
        unknown=("does not exist",),
        cancel=("pjdel",),
    ),
}
