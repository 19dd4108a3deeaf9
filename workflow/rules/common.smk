# Shared by all rule files: the experiment, the shell prefix of rules, and the wildcard constraints.

import os
import shlex
import socket
import sys

from dithc.workflow.workflow import Workflow

W = Workflow.of(workflow, config)

# Rules do not inherit the environment of the interpreter that runs Snakemake. DITHC_DRIVER_PID and DITHC_DRIVER_HOST let a
# training run detect that this process has ended, save a checkpoint and stop. A prefix replaces Snakemake's strict mode:
# without pipefail, `tee` would hide the exit status of a command.
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
    restoration=W.names("restorations"),
    step=r"\d{7}",
    split="train|val|test|all",
    images=r"all|\d+",
