"""Tests of commands and parsers of each batch system, from manuals and recorded output."""

from pathlib import Path

import pytest

from dithc.engine.scheduler.batch_systems import SYSTEMS, JobRequest
from dithc.engine.scheduler.queue import SchedulerJob

REQUEST = JobRequest(
    name="dithc-pretrain",
    script=Path("/work/job.sh"),
    out=Path("/work/job.out"),
    nodes=2,
    tasks=8,
    cpus=12,
    memory_mb=30_000,
    minutes=90,
    options=("-q", "large"),
)


SUBMITTED = {
    "slurm": "--job-name=dithc-pretrain --nodes=2 --ntasks=8 --cpus-per-task=12 --mem=30000M --time=90",
    "pbs": "-N dithc-pretrain -j oe -o /work/job.out -r y -l select=2:ncpus=48:mpiprocs=4:ompthreads=12:mem=30000mb "
    "-l walltime=01:30:00 -l place=scatter",
    "lsf": "-n 96 -R span[ptile=48] -R rusage[mem=30000MB/host] -W 90",
    "fujitsu": "-L node=2,elapse=01:30:00,node-mem=30000M --mpi proc=8,max-proc-per-node=4",
}
NUMBERS = {
    "slurm": {"4711\n": "4711", "4711;cluster\n": "4711"},
    "pbs": {"1234.pbs01\n": "1234.pbs01"},
    "lsf": {"Verifying ...\nJob <88120> is submitted to default queue <normal>.\n": "88120"},
    "fujitsu": {"[INFO] PJM 0000 pjsub Job 238 submitted.\n": "238"},
}


def read(system: str, text: str, ask: int = 0) -> dict[str, SchedulerJob]:
    return {job.id: job for job in SYSTEMS[system].queries[ask].read(text)}


@pytest.mark.parametrize("system", SYSTEMS)
def test_submit_command_matches_request_and_job_number_is_parsed(system: str) -> None:
    submitted = SYSTEMS[system].submit(REQUEST)
    assert submitted[-3:] == ["-q", "large", "/work/job.sh"], "options of the site must precede the script"
    assert SUBMITTED[system] in " ".join(submitted)
    for printed, number in (NUMBERS[system] | {"error: no such queue\n": None}).items():
        assert SYSTEMS[system].parse_number(printed) == number


def test_single_rank_fujitsu_job_omits_the_mpi_option() -> None:
    request = JobRequest(name="dithc-tiles", script=Path("a"), out=Path("b"), memory_mb=1000, minutes=5)
    assert "--mpi" not in SYSTEMS["fujitsu"].submit(request)


def test_slurm_queue_and_accounting_are_read() -> None:
    seen = read(
        "slurm", "7|RUNNING|a|n[1-2]|None|0:05|/|\n8|PENDING|a||Resources|0:00|/|\n9|PREEMPTED|a|n1|None|0:31|/|\n"
    )
    assert (seen["7"].state, seen["7"].nodes, seen["7"].reason) == ("RUNNING", "n[1-2]", "")
    assert (seen["8"].waits, seen["8"].reason) == (True, "Resources")
    assert seen["9"].state == "PREEMPTED"
    accounted = read("slurm", "7|FAILED|75:0|n1|00:00:12|a|\n8|CANCELLED by 0|0:15|n1|00:00:02|a|\n", ask=1)
    assert (accounted["7"].state, accounted["7"].status) == ("FAILED", 75)
    assert (accounted["8"].state, accounted["8"].status) == ("CANCELLED", 143)


PBS = """{
    "timestamp":1700000000,
    "pbs_version":"2022.1.1",
    "pbs_server":"pbs01",
    "Jobs":{
        "1.pbs01":{"Job_Name":"dithc-tiles","job_state":"Q","comment":"Not Running: Insufficient amount of resource: ncpus"},
        "2.pbs01":{"job_state":"R","exec_host":"n1/0*48+n2/0*48","resources_used":{"walltime":"00:10:00"}},
        "3.pbs01":{"job_state":"F","Exit_status":0,"exec_host":"n1/0"},
        "4.pbs01":{"job_state":"F","Exit_status":75},
        "5.pbs01":{"job_state":"F","Exit_status":-29},
        "6.pbs01":{"job_state":"F","Exit_status":-27},
        "7.pbs01":{"job_state":"F","Exit_status":271,"Resource_List":{"walltime":"01:00:00"},
                   "resources_used":{"walltime":"00:10:00"}},
        "8.pbs01":{"job_state":"F","Exit_status":271,"Resource_List":{"walltime":"01:00:00"},
                   "resources_used":{"walltime":"01:00:09"}},
        "9.pbs01":{"job_state":"H"},
        "10.pbs01":{"job_state":"F"},
        "11.pbs01":{"job_state":"F","Exit_status":-3},
        "12.pbs01":{"job_state":"E","Exit_status":0}
    }
}
"""


LSF = """{
  "COMMAND":"bjobs",
  "JOBS":7,
  "RECORDS":[
    {"JOBID":"1","STAT":"PEND","EXIT_CODE":"","EXIT_REASON":"","EXEC_HOST":"","PEND_REASON":"Job slot limit reached"},
    {"JOBID":"2","STAT":"RUN","EXIT_CODE":"","EXIT_REASON":"","EXEC_HOST":"48*n1:48*n2","PEND_REASON":""},
    {"JOBID":"3","STAT":"DONE","EXIT_CODE":"","EXIT_REASON":"","EXEC_HOST":"n1","PEND_REASON":""},
    {"JOBID":"4","STAT":"EXIT","EXIT_CODE":"75","EXIT_REASON":"","EXEC_HOST":"n1","PEND_REASON":""},
    {"JOBID":"5","STAT":"EXIT","EXIT_CODE":"140","EXIT_REASON":"TERM_RUNLIMIT: job killed after reaching LSF run time limit"},
    {"JOBID":"6","STAT":"EXIT","EXIT_CODE":"130","EXIT_REASON":"TERM_OWNER: job killed by owner"},
    {"JOBID":"7","STAT":"EXIT","EXIT_CODE":"137","EXIT_REASON":"TERM_PREEMPT: job killed after preemption"},
    {"JOBID":"8","ERROR":"Job <8> is not found"},
    {"JOBID":"9","STAT":"ZOMBI"}
  ]
}
"""


FUJITSU = """
  ACCEPT QUEUED  STGIN  READY RUNING RUNOUT STGOUT   HOLD  ERROR   TOTAL
       0      1      0      0      1      0      0      0      0       2

JOB_ID     ST  EC  PC REASON
238        QUE -   -  -
239        RUN -   -  -
240        EXT 0   0  -
241        EXT 75  0  -
242        EXT 137 11 ELAPSE LIMIT EXCEEDED
243        EXT 137 12 MEMORY LIMIT EXCEEDED
244        EXT 137 20 NODE DOWN
245        CCL -   1  -
246        EXT 0   18 ANOTHER JOB STARTED
247        RJT -   2  REJECTED
"""


# States of the jobs above, in their order.
STATES = {
    "pbs": "PENDING RUNNING COMPLETED FAILED TIMEOUT OUT_OF_MEMORY CANCELLED TIMEOUT PENDING CANCELLED NODE_FAIL COMPLETING",
    "lsf": "PENDING RUNNING COMPLETED FAILED TIMEOUT CANCELLED PREEMPTED NODE_FAIL",
    "fujitsu": "PENDING RUNNING COMPLETED FAILED TIMEOUT OUT_OF_MEMORY NODE_FAIL CANCELLED PREEMPTED FAILED",
}


def test_states_nodes_reasons_and_exit_statuses_are_read() -> None:
    pbs, lsf, fujitsu = read("pbs", PBS), read("lsf", LSF), read("fujitsu", FUJITSU)
    for system, jobs in {"pbs": pbs, "lsf": lsf, "fujitsu": fujitsu}.items():
        assert [job.state for job in jobs.values()] == STATES[system].split()
    assert "8" not in lsf
    assert pbs["2.pbs01"].nodes == lsf["2"].nodes == "n1,n2"
    assert "Insufficient" in pbs["1.pbs01"].reason
    assert fujitsu["242"].reason == "ELAPSE LIMIT EXCEEDED"
    assert (pbs["4.pbs01"].status, pbs["7.pbs01"].status, fujitsu["241"].status) == (75, 143, 75)
    assert (lsf["3"].status, lsf["4"].status) == (0, 75)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("text", ["", "error: cannot connect\n", "{", '{"Jobs": {}, "RECORDS": []}'])
def test_reply_without_jobs_yields_an_empty_result(system: str, text: str) -> None:
    assert read(system, text) == {}
