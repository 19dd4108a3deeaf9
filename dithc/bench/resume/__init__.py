"""Storage of long measurements, so that an interrupted command resumes with the finished units.

A `MeasurementSession` is one execution of a benchmark. It stores each unit (a run, a case, a round of interleaved variants) as a
line of a file when the unit is complete. Ctrl-C and SIGTERM (a time limit, a scheduler) discard the running unit; the
benchmark then returns a result from the finished units. `session` starts an execution, `current_session` returns the current one.
Units measured with different arguments or in a different environment are discarded. Outside a `session` block an
interruption propagates.
"""

from dithc.bench.resume.session import (
    MeasurementSession,
    MeasurementStopped,
    current_session,
    measurement_session,
    sigterm_exits,
)

__all__ = ["MeasurementSession", "MeasurementStopped", "current_session", "measurement_session", "sigterm_exits"]
