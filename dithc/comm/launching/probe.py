"""Probe of the MPI library in a separate process, because a broken MPI hangs or kills its process."""

import json
import os
import subprocess
import sys

from dithc.comm.environment import for_ranks

PROGRAM = "import json; from dithc.comm.mpi import facts; print(json.dumps(facts()))"


def probe_mpi(*, timeout_seconds: float = 30.0) -> dict[str, str]:
    """Return vendor, library, standard and thread_level of the MPI of a rank.

    Returns `error` with the reason if MPI does not initialize.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=for_ranks(os.environ, on_this_node=True),
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"MPI did not initialize within {timeout_seconds:g} s"}
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        return {"error": last}
    return {str(key): str(value) for key, value in json.loads(done.stdout).items()}
