"""Batch systems as data: commands to submit, query and cancel jobs.

All functions are pure: from requests to command lines, and from output to jobs. States use Slurm's terms.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dithc.cluster import slurm
from dithc.cluster.queue import Job

KILLED = 256  # PBS: the exit status after a signal is this plus the signal number
HELD = "JobHeldUser"
SQUEUE_FORMAT, SACCT_FORMAT = f"--format={slurm.FIELDS}", f"--format={slurm.HISTORY}"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Resource request of a job.

    Attributes:
        name: letters, digits, `-`, `_`.
        out: file for output of the system; the script writes a separate log.
        tasks: ranks over all nodes.
        cpus: cores per rank.
        memory_mb: per node.
        minutes: walltime.
        options: arguments of the site, such as queue and account.
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
        """Maximum ranks per node."""
        return -(-self.tasks // self.nodes)

    @property
    def cores_per_node(self) -> int:
        """Cores per node."""
        return self.tasks_per_node * self.cpus

    @property
    def clock(self) -> str:
        """Walltime as HH:MM:SS."""
        return f"{self.minutes // 60:02d}:{self.minutes % 60:02d}:00"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A job query: command line from job numbers, and parser of its output."""

    line: Callable[[Sequence[str]], list[str]]
    read: Callable[[str], list[Job]]


@dataclass(frozen=True, kw_only=True)
class System:
    """A batch system.

    Attributes:
        source: manual pages.
        tried: system on which its commands were tested.
        number: pattern of the job number in the output of `submit`.
        asks: query commands; later ones cover jobs that earlier ones do not report.
        unknown: error texts for an unknown job; any other error counts as a missing reply.
        cancel: command that accepts job numbers.
    """

    title: str
    source: str
    tried: str
    submit: Callable[[Request], list[str]]
    number: str
    asks: tuple[Ask, ...]
    unknown: tuple[str, ...]
    cancel: tuple[str, ...]

    def number_in(self, printed: str) -> str | None:
        """Return the job number in the output of the submit command, or None."""
        found = re.search(self.number, printed, re.MULTILINE)
        return found.group(1) if found else None


def _slurm_submit(request: Request) -> list[str]:
    size = [f"--nodes={request.nodes}", f"--ntasks={request.tasks}", f"--cpus-per-task={request.cpus}"]
    limits = [f"--mem={request.memory_mb}M", f"--time={request.minutes}"]
    files = [f"--output={request.out}", "--open-mode=append", f"--job-name={request.name}"]
    return ["sbatch", "--parsable", "--requeue", *files, *size, *limits, *request.options, str(request.script)]


def _pbs_submit(request: Request) -> list[str]:
    chunk = f"ncpus={request.cores_per_node}:mpiprocs={request.tasks_per_node}:ompthreads={request.cpus}"
    size = ["-l", f"select={request.nodes}:{chunk}:mem={request.memory_mb}mb", "-l", f"walltime={request.clock}"]
    place = ["-l", "place=scatter"] if request.nodes > 1 else []
    files = ["-N", request.name, "-j", "oe", "-o", str(request.out), "-r", "y"]
    return ["qsub", *files, *size, *place, *request.options, str(request.script)]


PBS_STATES = {
    **dict.fromkeys("QTW", "PENDING"),
    "H": "PENDING",
    **dict.fromkeys("RBM", "RUNNING"),
    "E": "COMPLETING",
    **dict.fromkeys("SU", "SUSPENDED"),
}
PBS_ENDED = {
    **dict.fromkeys((-29, -28), "TIMEOUT"),
    **dict.fromkeys((-27, -26), "OUT_OF_MEMORY"),
    # Not started, or the execution host rebooted: retry, initialization, failure of another host.
    **dict.fromkeys((-3, -4, -5, -6, -14), "NODE_FAIL"),
}


def _qstat(text: str) -> list[Job]:
    begin = text.find("{")
    try:
        shown = json.loads(text[begin:], strict=False).get("Jobs", {}) if begin >= 0 else {}
    except ValueError:
        return []
    return [_pbs_job(number, values) for number, values in shown.items()]


def _pbs_job(number: str, values: dict[str, object]) -> Job:
    letter, ended = str(values.get("job_state", "")), values.get("Exit_status")
    used, asked = (_part(values, key).get("walltime", "") for key in ("resources_used", "Resource_List"))
    status = int(str(ended)) if ended is not None else None
    state = PBS_STATES.get(letter, "RUNNING")
    if letter in ("F", "X", "C"):
        if status is None:  # it ended before its start
            state = "CANCELLED"
        elif status >= KILLED:
            state = "TIMEOUT" if used and asked and _seconds(str(used)) >= _seconds(str(asked)) else "CANCELLED"
            status = 128 + status - KILLED
        else:
            state = PBS_ENDED.get(status, "COMPLETED" if status == 0 else "FAILED")
    hosts = dict.fromkeys(re.findall(r"([^/+\s]+)/", str(values.get("exec_host", ""))))
    reason = HELD if letter == "H" else str(values.get("comment", "")) if letter in "QW" else ""
    return Job(id=number, state=state, reason=reason, nodes=",".join(hosts), status=status, elapsed=str(used))


def _part(values: dict[str, object], key: str) -> dict[str, object]:
    part = values.get(key)
    return part if isinstance(part, dict) else {}


def _seconds(clock: str) -> int:
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + (int(part) if part.isdigit() else 0)
    return seconds


def _lsf_submit(request: Request) -> list[str]:
    slots = ["-n", str(request.nodes * request.cores_per_node), "-R", f"span[ptile={request.cores_per_node}]"]
    limits = ["-R", f"rusage[mem={request.memory_mb}MB/host]", "-W", str(request.minutes)]
    files = ["-J", request.name, "-o", str(request.out), "-r"]
    return ["bsub", *files, *slots, *limits, *request.options, str(request.script)]


LSF_STATES = {
    **dict.fromkeys(("PEND", "WAIT", "PROV", "PSUSP"), "PENDING"),
    **dict.fromkeys(("RUN", "UNKWN"), "RUNNING"),
    **dict.fromkeys(("USUSP", "SSUSP"), "SUSPENDED"),
    "DONE": "COMPLETED",
    "ZOMBI": "NODE_FAIL",
}
LSF_ENDED = {
    **dict.fromkeys(("TERM_RUNLIMIT", "TERM_CPULIMIT", "TERM_DEADLINE"), "TIMEOUT"),
    **dict.fromkeys(("TERM_MEMLIMIT", "TERM_SWAP"), "OUT_OF_MEMORY"),
    **dict.fromkeys(
        ("TERM_OWNER", "TERM_FORCE_OWNER", "TERM_ADMIN", "TERM_FORCE_ADMIN", "TERM_BUCKET_KILL"), "CANCELLED"
    ),
    **dict.fromkeys(("TERM_PREEMPT", "TERM_LOAD", "TERM_WINDOW"), "PREEMPTED"),
}


LSF_FIELDS = "jobid stat exit_code exit_reason exec_host pend_reason"


def _bjobs(text: str) -> list[Job]:
    begin = text.find("{")
    try:
        rows = json.loads(text[begin:]).get("RECORDS", []) if begin >= 0 else []
    except ValueError:
        return []
    return [_lsf_job(row) for row in rows if "STAT" in row]


def _lsf_job(row: dict[str, str]) -> Job:
    stat, why, code = row["STAT"], row.get("EXIT_REASON", ""), row.get("EXIT_CODE", "")
    term = re.search(r"TERM_[A-Z_]+", why)
    state = LSF_STATES.get(stat) or LSF_ENDED.get(term.group() if term else "", "FAILED")
    hosts = dict.fromkeys(part.rpartition("*")[2] for part in row.get("EXEC_HOST", "").split(":") if part)
    reason = HELD if stat == "PSUSP" else row.get("PEND_REASON", "") if stat == "PEND" else ""
    status = int(code) if code.isdigit() else 0 if stat == "DONE" else None
    return Job(id=row["JOBID"], state=state, reason=reason, nodes=",".join(hosts), status=status)


def _fujitsu_submit(request: Request) -> list[str]:
    limits = f"node={request.nodes},elapse={request.clock},node-mem={request.memory_mb}M"
    ranks = f"proc={request.tasks},max-proc-per-node={request.tasks_per_node}"
    size = ["-L", limits, *(["--mpi", ranks] if request.tasks > 1 else [])]
    files = ["--name", request.name, "-j", "-o", str(request.out)]
    return ["pjsub", *files, *size, *request.options, str(request.script)]


FUJITSU_STATES = {
    **dict.fromkeys(("ACC", "QUE", "HLD"), "PENDING"),
    **dict.fromkeys(("RNA", "RNP", "RUN"), "RUNNING"),
    **dict.fromkeys(("RNE", "RNO"), "COMPLETING"),
    **dict.fromkeys(("SPP", "SPD", "RSM"), "SUSPENDED"),
    **dict.fromkeys(("RJT", "ERR"), "FAILED"),
    "CCL": "CANCELLED",
}
# PJM codes of ended jobs: time limit, memory limit, lost node, preemption.
FUJITSU_ENDED = {
    "1": "CANCELLED",
    "7": "DEADLINE",
    "11": "TIMEOUT",
    **dict.fromkeys(("12", "23"), "OUT_OF_MEMORY"),
    **dict.fromkeys(("9", "20", "22", "25"), "NODE_FAIL"),
    "18": "PREEMPTED",
}
FUJITSU_FIELDS = ["-v", "--choose", "jid,st,ec,pc,ermsg"]


def _pjstat(text: str) -> list[Job]:
    jobs, in_table = [], False
    for line in text.splitlines():
        words = line.split(None, 4)
        if words[:2] == ["JOB_ID", "ST"]:
            in_table = True
        elif in_table and len(words) >= 4:
            number, letters, code, pjm = words[:4]
            state = FUJITSU_STATES.get(letters) or FUJITSU_ENDED.get(pjm, "COMPLETED" if code == "0" else "FAILED")
            reason = HELD if letters == "HLD" else words[4].strip("- ") if len(words) > 4 else ""
            status = int(code) if letters == "EXT" and code.isdigit() else None
            jobs.append(Job(id=number, state=state, reason=reason, status=status))
    return jobs


NOT_RUN = "tested with recorded and stubbed commands only"
SYSTEMS = {
    "slurm": System(
        title="Slurm",
        source="sbatch(1), squeue(1), sacct(1), scancel(1)",
        tried="on a Slurm 22.05 of two nodes",
        submit=_slurm_submit,
        number=r"^(\d+)",
        asks=(
            Ask(
                line=lambda ids: ["squeue", "--noheader", "--states=all", f"--jobs={','.join(ids)}", SQUEUE_FORMAT],
                read=slurm.read_queue,
            ),
            Ask(
                line=lambda ids: ["sacct", "-X", "-n", "-P", f"--jobs={','.join(ids)}", SACCT_FORMAT],
                read=slurm.read_accounting,
            ),
        ),
        unknown=("Invalid job id", "accounting storage is disabled"),
        cancel=("scancel",),
    ),
    "pbs": System(
        title="PBS Professional, OpenPBS (not Torque)",
        source="qsub(1B), qstat(1B), qdel(1B), pbs_job_attributes(7B); PBS Administrator's Guide, Job Exit Status Codes",
        tried=NOT_RUN,
        submit=_pbs_submit,
        number=r"^(\d+[\w.\[\]-]*)\s*$",
        asks=(Ask(line=lambda ids: ["qstat", "-x", "-f", "-F", "json", *ids], read=_qstat),),
        unknown=("Unknown Job Id", "Unknown Job ID", "has finished"),
        cancel=("qdel",),
    ),
    "lsf": System(
        title="IBM Spectrum LSF 10.1.0.9 or later",
        source="bsub(1), bjobs(1), bkill(1); IBM Spectrum LSF: Termination reasons; release notes 10.1.0.9 (rusage keywords)",
        tried=NOT_RUN,
        submit=_lsf_submit,
        number=r"Job <(\d+)>",
        asks=(Ask(line=lambda ids: ["bjobs", "-a", "-json", "-o", LSF_FIELDS, *ids], read=_bjobs),),
        unknown=("is not found", "No matching job found"),
        cancel=("bkill",),
    ),
    "fujitsu": System(
        title="Fujitsu Technical Computing Suite (A64FX)",
        source="pjsub(1), pjstat(1), pjdel(1); Job Operation Software End-user's Guide, PJM codes",
        tried=NOT_RUN,
        submit=_fujitsu_submit,
        number=r"[Jj]ob (\d+) submitted",
        asks=(
            Ask(line=lambda ids: ["pjstat", *FUJITSU_FIELDS, *ids], read=_pjstat),
            Ask(line=lambda ids: ["pjstat", "-H", "day=7", *FUJITSU_FIELDS, *ids], read=_pjstat),
        ),
        unknown=("does not exist",),
        cancel=("pjdel",),
    ),
}
