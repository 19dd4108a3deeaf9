"""What jobs ask for: memory, time and cores by one rule, ranks started by the launcher, arguments of benches.

What: `Jobs` gives each rule its resources and the start of its command (`resources`), from what a job needs (`sizing`, a pure
rule of model, batch and data); `Benches` gives the arguments of the bench verbs.
Why: what a job asks for must not depend on where the rule files are read: on the login node, or again inside the job.
Invariants: pure functions of the configuration; a job that can never start is an error before the first one.
How to change it: a new stage has a line in `sizing._RULES`.
"""

from dithc.workflow.jobs.benches import Benches
from dithc.workflow.jobs.resources import Jobs

__all__ = ["Benches", "Jobs"]
