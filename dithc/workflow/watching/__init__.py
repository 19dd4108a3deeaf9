"""Progress of an experiment for users: during a run, after a failure, at the end.

Contents: `Progress` inspects all stages and returns a `Status` (`look`, `tails`); `lines_of` formats it (`rows`, `fitting`);
`Narrator` reports changes; `Closing` summarizes; `Engine` runs Snakemake and `Words` filters its text; `warned` counts
warnings. Invariants: read-only; missing, truncated or incompatible files are a state, not an error. No import of torch.
Extending: a state of a stage is a `State` in `standing`; a new line is a function of a `Status`.
"""

from dithc.workflow.watching.closing import Closing
from dithc.workflow.watching.engine import Engine, Words
from dithc.workflow.watching.narrate import Narrator
from dithc.workflow.watching.progress import Progress, Status
from dithc.workflow.watching.rows import lines_of
from dithc.workflow.watching.tails import error_of, tail

__all__ = ["Closing", "Engine", "Narrator", "Progress", "Status", "Words", "error_of", "lines_of", "tail"]
