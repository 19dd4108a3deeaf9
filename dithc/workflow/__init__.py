"""Interface of the Snakemake rule files: names, dependencies, resources, and the driver.

Purpose: rule files contain no logic, and resources do not depend on where the rules are read.
Contents: `workflow.Workflow`, which only rule files import, combines `experiment_graph`, `jobs`, `preflight` and `driver`.
`monitor` reports progress: `ExperimentMonitor`, `EventReporter`, `RunSummary`, and `SnakemakeProcess`, which runs Snakemake.
Invariants: no import of torch, for fast job starts. A job that can never start is an error before the first job. One driver
works on an experiment at a time.
Extending: ARCHITECTURE.md lists the places of a new stage.
"""

from dithc.workflow.monitor import (
    EventReporter,
    ExperimentMonitor,
    ExperimentStatus,
    OutputFilter,
    RunSummary,
    SnakemakeProcess,
    format_status,
)

__all__ = [
    "EventReporter",
    "ExperimentMonitor",
    "ExperimentStatus",
    "OutputFilter",
    "RunSummary",
    "SnakemakeProcess",
    "format_status",
]
