"""How far an experiment is, said to people: while it runs, when it fails, and when it is done.

What: `Progress` looks at every stage (`look`: the scheduler's word first, then manifests, logs and the store; `tails` reads their
ends) and gives a `Status`; `lines_of` puts that into aligned lines (`rows`), `Narrator` says what happened between two of them,
`Closing` what came of it, `Engine` runs Snakemake as a child and tells which of its text is dithc's; `warned` counts kinds of
warnings, `fitting` makes text fit a line.
Why: Snakemake's own text says which rules ran, and neither how long is left nor how good the result is.
Invariants: looking changes nothing; what is gone, cut short or of another version is a state and no error; no torch.
How to change it: a new state of a stage is a `State` in `standing` with its words there; a new line is a function of a `Status`.
"""

from dithc.workflow.watching.closing import Closing
from dithc.workflow.watching.engine import Engine, Words
from dithc.workflow.watching.narrate import Narrator
from dithc.workflow.watching.progress import Progress, Status
from dithc.workflow.watching.rows import lines_of

__all__ = ["Closing", "Engine", "Narrator", "Progress", "Status", "Words", "lines_of"]
