"""Storage of long measurements, so that an interrupted command resumes with the finished units.

A `MeasurementSession` is one execution of a benchmark. It stores each complete unit (a run, a case, a round of
interleaved variants) as a line of a file. Ctrl-C and SIGTERM discard the running unit; the benchmark then returns a
result from the finished units. Units measured with different arguments or in a different environment are discarded.
"""

from dithc.bench.resume.session import (
    MeasurementSession,
    MeasurementStopped,
    current_session,
    measurement_session,
    sigterm_exits,
)

__all__ = ["MeasurementSession", "MeasurementStopped", "current_session", "measurement_session", "sigterm_exits"]
