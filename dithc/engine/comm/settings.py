"""Settings of the exchange between ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Wire = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class CommConfig:
    """Settings of process groups, as the keys of the same names in section `machine` of the configuration.

    Attributes:
        collectives: method of fp32 and bf16 sums. `blocking` waits inside MPI; `iallreduce` posts and polls;
            `hierarchical` sums within a node through shared memory and exchanges the sums between nodes.
        reduce_dtype: data type in which `hierarchical` moves fp32 summands; sums are fp32.
        param_gather_dtype: data type in which `ShardedParameters` moves weights.
    """

    collectives: Literal["hierarchical", "iallreduce", "blocking"] = "hierarchical"
    reduce_dtype: Wire = "fp32"
    param_gather_dtype: Wire = "fp32"

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use these settings for process groups created during a `with` block."""
        global _current
        previous, _current = _current, self
        try:
            yield
        finally:
            _current = previous

    @staticmethod
    def current() -> "CommConfig":
        return _current


_current = CommConfig()
