"""Checks before the first job: user files, and damaged results.

Contents: `check_inputs` checks the user's files; `find_damaged` finds missing or truncated results, which `damage_message`
describes; `find_restorable` selects those that a rebuild reproduces (`read_digest`), so that no downstream job runs;
`read_manifest` reads a result that may be missing. Invariants: no writes; files are inspected, not hashed. Extending: a kind of
input is a case in `inputs.py`.
"""

from dithc.workflow.preflight.inputs import check_inputs
from dithc.workflow.preflight.restored import find_restorable, read_digest, read_manifest
from dithc.workflow.preflight.results import check_owner, damage_message, find_damaged

__all__ = [
    "check_inputs",
    "check_owner",
    "damage_message",
    "find_damaged",
    "find_restorable",
    "read_digest",
    "read_manifest",
]
