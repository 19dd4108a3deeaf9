"""Steps with numbers that are not finite: the error, and the policy of the run.

A step is a pure function of the weights, so repeating it cannot help. Both recoveries drop the update for good: `skip` keeps
the weights before it, `rollback` loads the newest checkpoint and so also repairs bad weights. The dropped steps are stored
before training continues, so a restarted run drops the same steps.
"""

from collections.abc import Callable

from dithc.comm import Group
from dithc.config import training
from dithc.log import UserError, logger, problem
from dithc.runs import Store, atomic_write
from dithc.sealed import documents, seal

LEFT_OUT_FILE = "left_out.json"
# More of them are no accident of the data: the training has diverged, or the machine is broken.
MOST_IN_A_ROW = 10
MOST_SINCE_CHECKPOINT = 10
log = logger(__name__)


class NotFinite(UserError):
    """A step with numbers that are not finite; raised on every rank, before any update.

    Attributes:
        step: the failed optimizer step.
        in_weights: whether the weights were bad before it, on any rank.
        found: per rank the first bad place; empty for ranks without one.
    """

    def __init__(self, step: int, *, what: str, got: str, in_weights: bool, found: dict[int, str]) -> None:
        super().__init__(
            problem(
                f"training left the finite numbers at step {step}: {what}",
                got=got,
                expected="finite numbers",
                fix="lower `lr`, raise `warmup_steps`, set `clip`, use `dtype: fp32`, or look for NaN in the latents; "
                "or set `nonfinite: skip` or `rollback`, which leave such steps out. Nothing was saved after the last "
                "checkpoint, from which a new start continues",
            )
        )
        self.step, self.in_weights, self.found = step, in_weights, found


class LeftOut:
    """The steps without an update, ascending, equal on all ranks, stored in `left_out.json` of the store."""

    def __init__(self, store: Store, group: Group) -> None:
        """Read the steps of earlier jobs; collective. Raises UserError if the file is damaged."""
        self._store, self._group = store, group
        self.steps: list[int] = group.broadcast_object(_read(store) if group.rank == 0 else None)
        if self.steps:
            log.info(f"steps left out, by {store.folder / LEFT_OUT_FILE}: {', '.join(map(str, self.steps))}")

    def add(self, step: int, *, what: str, reason: str, **facts: object) -> None:
        """Drop a step from now on: store it and log the event. Raises UserError if the disk is full or not writable."""
        self.steps[:] = sorted({*self.steps, step})
        if self._group.rank > 0:
            return
        path = self._store.folder / LEFT_OUT_FILE
        try:
            atomic_write(path, seal({"steps": self.steps}))
        except OSError as error:
            raise problem(
                f"the steps left out could not be written to {path}",
                got=error,
                expected="a writable folder with room for them",
                fix="free space, then start again: training continues from the last complete checkpoint",
            ) from error
        self._store.event(what, step=step, reason=reason, **facts)

    def before(self, step: int) -> int:
        """Return the number of consecutive dropped steps before `step`."""
        count = 0
        while step - 1 - count in self.steps:
            count += 1
        return count

    def last_made_before(self, step: int) -> int:
        """The last step before `step` that is not left out."""
        return step - 1 - self.before(step)


def _read(store: Store) -> list[int]:
    path = store.folder / LEFT_OUT_FILE
    try:
        return [int(step) for step in documents.read(path)["steps"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "remove it: steps that are not finite are found again"
        raise problem(f"{path} cannot be read", got=error, expected='{"steps": [...]}', fix=fix) from error


class Recovery:
    """Policy for steps that are not finite; `roll_back` loads the newest checkpoint and returns its step (collective)."""

    def __init__(self, policy: training.NonFinite, *, left_out: LeftOut, roll_back: Callable[[], int]) -> None:
        self._policy, self.left_out, self._roll_back = policy, left_out, roll_back

    def after(self, error: NotFinite) -> None:
        """Prepare to continue without the step; collective. Raises `error` if the policy is to stop or did not help."""
        if self._policy == "stop":
            raise error
        if self._policy == "skip":
            self._skip(error)
        else:
            self._go_back(error)

    def _skip(self, error: NotFinite) -> None:
        if error.in_weights:
            log.error("nonfinite: skip does not help where weights are not finite; `nonfinite: rollback` would")
            raise error
        if self.left_out.before(error.step) >= MOST_IN_A_ROW:
            log.error(f"nonfinite: {MOST_IN_A_ROW} steps in a row are left out already")
            raise error
        log.warning(f"step {error.step} is left out (nonfinite: skip): {_first_line(error)}{_places(error)}")
        self.left_out.add(error.step, what="skipped", reason=_first_line(error), ranks=error.found)

    def _go_back(self, error: NotFinite) -> None:
        checkpoint = self._roll_back()
        bad = self.left_out.last_made_before(error.step) if error.in_weights else error.step
        if bad <= checkpoint:  # the weights went bad in memory, not by an update
            bad = error.step
        if bad in self.left_out.steps:
            log.error(f"nonfinite: step {bad} is left out already, and that has not helped")
            raise error
        if sum(step > checkpoint for step in self.left_out.steps) >= MOST_SINCE_CHECKPOINT:
            log.error(f"nonfinite: {MOST_SINCE_CHECKPOINT} steps after checkpoint {checkpoint} are left out already")
            raise error
        log.warning(
            f"back to step {checkpoint}; step {bad} is left out (nonfinite: rollback): "
            f"{_first_line(error)}{_places(error)}"
        )
        self.left_out.add(bad, what="rolled back", reason=_first_line(error), to=checkpoint, ranks=error.found)


def _first_line(error: NotFinite) -> str:
    return str(error).partition("\n")[0]


def _places(error: NotFinite) -> str:
    return "".join(f"; rank {rank}: {place}" for rank, place in error.found.items())
