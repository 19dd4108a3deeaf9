"""Asks for the MPI library's name and thread level in a process of its own: a broken MPI hangs or kills its process."""

import json
import os
import subprocess
import sys

PROGRAM = "import json; from dithc.comm.mpi import facts; print(json.dumps(facts()))"
LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "OMPI_", "SLURM_")


def probe_mpi(*, timeout_seconds: float = 30.0) -> dict[str, str]:
    """Facts about the MPI that a rank would load: vendor, library, standard, thread_level; or `error` with the reason."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_PREFIXES)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"MPI did not initialise within {timeout_seconds:g} s"}
    if done.returncode != 0:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        return {"error": last}
    return {str(key): str(value) for key, value in json.loads(done.stdout).items()}
