"""What is looked at before the first job: the user's files, and results that are not whole any more.

What: `check_inputs` says whether the user's files are there with what their settings need of them; `damaged` finds results of
which a file is gone or has another size, `told` puts them into words; `restorable` says which of them will be the same when they
are made again (`digest_of`), so that nothing has to run for them.
Why: what is missing is found in seconds on the login node, not in hours on a compute node.
Invariants: nothing is written; files are looked at, not hashed.
How to change it: another kind of input is a case in `inputs.py`.
"""

from dithc.workflow.checks.inputs import check_inputs
from dithc.workflow.checks.products import damaged, told
from dithc.workflow.checks.restored import digest_of, restorable

__all__ = ["check_inputs", "damaged", "digest_of", "restorable", "told"]
