# What every rule file uses: the experiment, the shell that rules run in, the shape of names.

import os
import shlex
import socket
import sys

from dithc.workflow import Workflow

W = Workflow.of(workflow, config)

# Rules do not inherit the environment of the interpreter that runs Snakemake; DITHC_DRIVER lets a training notice that
# this process is gone, save and stop. A prefix replaces Snakemake's own strict mode: without pipefail the status of a
# verb would be lost behind `tee`.
shell.prefix(
    f'{W.jobs.prologue}set -euo pipefail; export PATH={shlex.quote(os.path.dirname(sys.executable))}:"$PATH"'
    f" DITHC_DRIVER_PID={os.getpid()} DITHC_DRIVER_HOST={socket.gethostname()}; "
)


wildcard_constraints:
    dataset=W.names("datasets"),
    codec=W.names("codecs"),
    run=W.names("runs"),
    extractor=W.names("extractors"),
    evaluation=W.names("evaluations"),
    step=r"\d{7}",
    split="train|val|test|all",
    images=r"all|\d+",
