"""The workflow as its rule files see it: names and dependencies, what jobs ask for, and what the driver does around them.

What: `Workflow` is all that rule files import: the matrix of an experiment (`matrix`), what jobs ask for (`jobs`), what is looked
at before the first (`checks`), and what the driver does when it starts, waits and fails (`driver`). `Progress` tells a person
how far an experiment is (`stages` lists its jobs), `Narrator` what happens in it, `Closing` what came of it, and `Engine` runs
Snakemake for them (`watching`).
Why: rule files hold no logic, and what a job asks for must not depend on where they are read: on the login node, or again
inside the job.
Invariants: nothing here imports torch (it is read at the start of every job); a job that can never start is an error before
the first one; one driver works on an experiment at a time.
How to change it: a new stage has a line in `jobs/sizing._RULES`, its paths in `matrix`.
"""

from dithc.workflow.watching import Closing, Engine, Narrator, Progress, Status, Words, lines_of
from dithc.workflow.workflow import Workflow

__all__ = ["Closing", "Engine", "Narrator", "Progress", "Status", "Words", "Workflow", "lines_of"]
