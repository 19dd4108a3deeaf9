"""What a call of the process group returns: an operation on its way, as torch.distributed knows it."""

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work
from torch.futures import Future

from dithc.comm.process_group.service import Job

# Typed as anything: torch says little about it.
_WORK: Any = Work


class MpiWork(_WORK):  # type: ignore[misc]
    """An operation on its way. Its future is a list of tensors; `wait` raises what the operation raised."""

    def __init__(self, ended: "Future[Any]", job: Job) -> None:
        super().__init__()
        # An exception set on a future crashes torch's C++ side; one that a callback raises arrives as it should.
        self._ended, self._future, self._job = ended, ended.then(_unwrap), job

    @property
    def begun(self) -> float | None:
        """When the communication thread took it up, of `time.perf_counter`; None before."""
        return self._job.begun

    @property
    def ended(self) -> float | None:
        """When it was done or had failed, of `time.perf_counter`; None before."""
        return self._job.ended

    def wait(self, timeout: timedelta | None = None) -> bool:
        _unwrap(self._ended)
        return True

    def get_future(self) -> "Future[Any]":
        return self._future

    def is_completed(self) -> bool:
        return self._ended.done()

    def is_success(self) -> bool:
        return self._ended.done() and self._ended.value()[1] is None

    def exception(self) -> BaseException | None:
        return self._ended.value()[1] if self._ended.done() else None

    def result(self) -> Any:
        return _unwrap(self._ended)


def _unwrap(future: "Future[Any]") -> Any:
    result, error = future.wait()
    if error is not None:
        raise error
    return result
