"""Progress of an experiment for users: during a run, after a failure, at the end.

Contents: `Progress` inspects all stages and returns a `Status` (`stage_inspector`, `log_tail`); `lines_of` formats it
(`status_table`, `text_width`); `Narrator` reports changes; `Closing` summarizes; `Engine` runs Snakemake and `Words` filters its
text; `warnings` counts warnings. Invariants: read-only; missing, truncated or incompatible files are a state, not an error. No
import of torch. Extending: a state of a stage is a `State` in `stage_status`; a new line is a function of a `Status`.
"""

from dithc.workflow.monitor.events import Narrator
from dithc.workflow.monitor.experiment_status import Progress, Status
from dithc.workflow.monitor.log_tail import error_of, tail
from dithc.workflow.monitor.run_summary import Closing
from dithc.workflow.monitor.snakemake_process import Engine, Words
from dithc.workflow.monitor.status_table import lines_of

__all__ = ["Closing", "Engine", "Narrator", "Progress", "Status", "Words", "error_of", "lines_of", "tail"]
