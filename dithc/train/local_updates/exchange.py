"""Exchange of one round: publication by this worker, and the sum of the tensors of workers, in a thread of rank 0."""

from collections.abc import Callable, Mapping, Sequence
from threading import Event, Thread

from torch import Tensor

from dithc.core.logging import UserError, user_error
from dithc.train.local_updates.shared_folder import SharedFolder

LONGEST_PAUSE = 0.5  # seconds between two checks for a file; the first pauses are shorter
Tensors = Mapping[str, Tensor]


class Exchange(Thread):
    """Tensors `name` of round `number`.

    Attributes:
        sums: sums of the tensors of `workers`, added in their order, by name.
        missing: the worker for which the thread waits.
        published: set after the publication.
        error: exception of the thread.
    """

    def __init__(
        self,
        folder: SharedFolder,
        name: str,
        number: int,
        *,
        own: Tensors | None,
        workers: Sequence[str],
        saved: int,
        add: Callable[[Tensors, dict[str, Tensor]], None],
    ) -> None:
        """Start. `own` is published, unless None; `add` adds tensors to sums, and raises ValueError for unsuitable ones."""
        super().__init__(name=f"{name} {number}", daemon=True)
        self.key = name, number, tuple(workers)
        self.sums, self.missing, self.published = dict[str, Tensor](), "", Event()
        self.error: Exception | None = None
        self._folder, self._own, self._saved, self._add = folder, own, saved, add
        self._canceled = Event()
        self.start()

    def run(self) -> None:
        name, number, workers = self.key
        try:
            if self._own is not None:
                self._folder.publish(name, number, self._own, saved=self._saved)
            self._own = None
            self.published.set()
            for self.missing in workers:
                pause = 0.001
                while (found := self._folder.read(self.missing, name, number)) is None:
                    if self._canceled.wait(pause := min(2 * pause, LONGEST_PAUSE)):
                        return
                try:
                    self._add(found, self.sums)
                except ValueError as error:
                    raise self._unsuitable(error) from error
        except Exception as error:  # raised in the training thread
            self.error = error
            self.published.set()

    def _unsuitable(self, error: ValueError) -> UserError:
        name, number, _ = self.key
        return user_error(
            f"{name} of worker {self.missing} in round {number}",
            got=error,
            expected="tensors of this network",
            fix="use the same version of dithc for all workers, or another `machine.exchange_folder`",
        )

    def cancel(self) -> None:
        """Stop waiting for other workers, after the publication."""
        self._canceled.set()
        self.join()
