"""Messages, errors, progress and metrics: how dithc speaks.

What: the logger with a rank prefix, the one shape of a user error (what, got, expected, fix), memory that the system refuses
(`refusal`), a progress bar that becomes plain lines in a log file, and the metrics writer (JSON lines and TensorBoard).
Why: on a cluster the log is the only window; one room decides how it reads.
Invariants: rank 0 speaks at INFO, other ranks only from WARNING, prefixed `r3 |`. Nothing here knows what is trained.
How to change it: a new kind of output (say, OpenMetrics) is a new writer behind `MetricsWriter`.
"""

from dithc.log import refusal
from dithc.log.errors import UserError, problem
from dithc.log.messages import logger, setup
from dithc.log.metrics import MetricsWriter, read_metrics
from dithc.log.progress import progress

__all__ = [
    "MetricsWriter",
    "UserError",
    "logger",
    "problem",
    "progress",
    "read_metrics",
    "refusal",
    "setup",
]
