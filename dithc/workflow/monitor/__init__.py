"""Progress of an experiment for users: during a run, after a failure, at the end.

Contents: `ExperimentMonitor` inspects all stages and returns an `ExperimentStatus` (`stage_inspector`, `log_tail`);
`format_status` formats it (`status_table`, `text_width`); `EventReporter` reports changes; `RunSummary` summarizes;
`SnakemakeProcess` runs Snakemake and `OutputFilter` filters its text; `warnings` counts warnings.

Invariants: read-only; missing, truncated or incompatible files are a state, not an error; no import of torch.

Extending: a state of a stage is a `State` in `stage_status`; a new line is a function of an `ExperimentStatus`.
"""

from dithc.workflow.monitor.events import EventReporter
from dithc.workflow.monitor.experiment_status import ExperimentMonitor, ExperimentStatus
from dithc.workflow.monitor.log_tail import error_of, tail
from dithc.workflow.monitor.run_summary import RunSummary
from dithc.workflow.monitor.snakemake_process import OutputFilter, SnakemakeProcess
from dithc.workflow.monitor.stage_inspector import read_mapping
from dithc.workflow.monitor.status_table import format_status

__all__ = [
    "EventReporter",
    "ExperimentMonitor",
    "ExperimentStatus",
    "OutputFilter",
    "RunSummary",
    "SnakemakeProcess",
    "error_of",
    "format_status",
    "read_mapping",
    "tail",
]
