"""Start and termination of ranks: the launcher's command line, its supervisor, and a watchdog process per rank.

Contents: `launch_command` builds the command line for each launcher and MPI, and `supervise` runs it. `start_watchdog`
inserts a parent process above a rank.
Invariants: no rank outlives its driver, and no shared memory outlives its ranks. The launching process never loads MPI.
Extending: another launcher is a branch in `launch_command.py`.
"""

from dithc.engine.comm.launch import exit_report, launch_command, shm_cleanup
from dithc.engine.comm.launch.shm_cleanup import check_shared_memory, unlink_shared_memory
from dithc.engine.comm.launch.supervisor import supervise
from dithc.engine.comm.launch.watchdog import STOP_TIMEOUT_SECONDS, set_stop_timeout, start_watchdog

__all__ = [
    "STOP_TIMEOUT_SECONDS",
    "check_shared_memory",
    "exit_report",
    "launch_command",
    "set_stop_timeout",
    "shm_cleanup",
    "start_watchdog",
    "supervise",
    "unlink_shared_memory",
]
