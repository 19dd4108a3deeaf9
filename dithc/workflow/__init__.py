"""The workflow as its rule files see it: names and dependencies, what jobs ask for, and what the driver does around them.

What: `Workflow` is all that rule files import: the matrix of an experiment (`matrix`), what a job needs (`sizing`, a pure rule)
and asks for (`jobs`), the arguments of benches (`benches`), and what the driver does when it starts, waits and fails (`driver`).
`Progress` tells a person how far an experiment is (`stages`, `look`, `rows`), `Narrator` what happens in it (`narrate`),
`Closing` what came of it, and `Engine` runs Snakemake for them (`engine`).
Why: rule files hold no logic, and what a job asks for must not depend on where they are read: on the login node, or again
inside the job.
Invariants: nothing here imports torch (it is read at the start of every job); a job that can never start is an error before
the first one; one driver works on an experiment at a time.
How to change it: a new stage has a line in `sizing._RULES`, its paths in `matrix`.
"""

from dithc.workflow.watching import Closing, Engine, Narrator, Progress, Status, Words, lines_of
from dithc.workflow.workflow import Workflow

__all__ = ["Closing", "Engine", "Narrator", "Progress", "Status", "Words", "Workflow", "lines_of"]
