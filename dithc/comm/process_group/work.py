"""Work object of the process group, as torch.distributed defines it."""

from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Work
from torch.futures import Future

from dithc.comm.process_group.service import Job

# Typed as Any because torch has few annotations for it.
_WORK: Any = Work


class MpiWork(_WORK):  # type: ignore[misc]
    """Active operation. Its future is a list of tensors; `wait` raises the error of the operation."""

    def __init__(self, ended: "Future[Any]", job: Job) -> None:
        super().__init__()
        # An exception set on a future crashes torch's C++ side; an exception raised by a callback is passed on
        # correctly.
        self._ended, self._future, self._job = ended, ended.then(_unwrap), job

    @property
    def begun(self) -> float | None:
        """`time.perf_counter` of the first step; None before."""
        return self._job.begun

    @property
    def ended(self) -> float | None:
        """`time.perf_counter` of completion or failure; None before."""
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
