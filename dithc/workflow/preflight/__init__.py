"""Checks before the first job: user files, and damaged results.

Contents: `check_inputs` checks the user's files; `damaged` finds missing or truncated results, which `told` describes;
`restorable` selects those that a rebuild reproduces (`digest_of`), so that no downstream job runs. Invariants: no writes; files
are inspected, not hashed. Extending: a kind of input is a case in `inputs.py`.
"""

from dithc.workflow.preflight.inputs import check_inputs
from dithc.workflow.preflight.restored import digest_of, restorable
from dithc.workflow.preflight.results import check_owner, damaged, told

__all__ = ["check_inputs", "check_owner", "damaged", "digest_of", "restorable", "told"]
