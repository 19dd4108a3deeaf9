"""Log messages, user errors, progress and metrics.

Contents: the logger with a rank prefix, user errors in four lines (title, got, expected, fix), out-of-memory errors
(`out_of_memory`), a progress bar that becomes plain lines in a log file, and the metrics writer (JSON lines and
TensorBoard).

Invariants: rank 0 logs from INFO on, other ranks from WARNING on, prefixed `r3 |`. The package does not depend on the
training code.

Extending: a new output format, such as OpenMetrics, is a further writer in `MetricsWriter`.
"""

from dithc.core.logging import out_of_memory
from dithc.core.logging.errors import UserError, unwritten, user_error
from dithc.core.logging.messages import get_logger, setup_logging
from dithc.core.logging.metrics import MetricsWriter, read_json_lines, read_metrics
from dithc.core.logging.progress import progress

__all__ = [
    "MetricsWriter",
    "UserError",
    "get_logger",
    "out_of_memory",
    "progress",
    "read_json_lines",
    "read_metrics",
    "setup_logging",
    "unwritten",
    "user_error",
]
