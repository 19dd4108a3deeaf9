"""Steps with numbers that are not finite: the error, and the policy of the run.

A step is a pure function of the weights, so that repeating it cannot help. Both recoveries drop the update permanently.
`skip` keeps the weights before it; `rollback` loads the newest checkpoint and thereby also repairs bad weights. The
dropped steps are stored before training continues, so that a restarted run drops the same steps.
"""

from collections.abc import Callable

from dithc.config import training
from dithc.core.artifacts import CheckpointStore, atomic_write
from dithc.core.integrity import dump_checksummed, read_document
from dithc.core.logging import UserError, get_logger, unwritten, user_error
from dithc.engine.comm import Group

SKIPPED_FILE = "skipped_steps.json"
# More dropped steps are not caused by single samples: the training run has diverged, or the machine is faulty.
MAX_CONSECUTIVE = 10
MAX_SINCE_CHECKPOINT = 10
log = get_logger(__name__)


class NonFiniteError(UserError):
    """Error of a step with numbers that are not finite; raised on every rank, before any update.

    Attributes:
        step: failed optimizer step.
        in_weights: whether the weights were bad before it, on any rank.
        found: first bad location per rank; without ranks that have none.
    """

    def __init__(self, step: int, *, subject: str, got: str, in_weights: bool, found: dict[int, str]) -> None:
        super().__init__(
            user_error(
                f"numbers are not finite at step {step}: {subject}",
                got=got,
                expected="finite numbers",
                fix="lower `lr`, raise `warmup_steps`, set `max_grad_norm`, use `dtype: fp32`, or check the latents for NaN; "
                "or set `on_nonfinite: skip` or `rollback`, which drop these steps. The last "
                "checkpoint is intact, and a restart continues from it",
            )
        )
        self.step, self.in_weights, self.found = step, in_weights, found


class SkippedSteps:
    """Steps without an update, ascending, equal on all ranks, stored in `skipped_steps.json` of the store."""

    def __init__(self, store: CheckpointStore, group: Group) -> None:
        """Read the steps of earlier jobs. Collective. Raises UserError if the file is damaged."""
        self._store, self._group = store, group
        self.steps: list[int] = group.broadcast_object(_read(store) if group.rank == 0 else None)
        if self.steps:
            log.info(f"skipped steps according to {store.folder / SKIPPED_FILE}: {', '.join(map(str, self.steps))}")

    def add(self, step: int, *, event: str, reason: str, **fields: object) -> None:
        """Drop a step from now on: store it and log the event; UserError if the disk is full or not writable."""
        self.steps[:] = sorted({*self.steps, step})
        if self._group.rank > 0:
            return
        path = self._store.folder / SKIPPED_FILE
        try:
            atomic_write(path, dump_checksummed({"steps": self.steps}))
        except OSError as error:
            fix = "free space, then start again: training continues from the last complete checkpoint"
            raise unwritten("the list of left-out steps", path, error, fix=fix) from error
        self._store.event(event, step=step, reason=reason, **fields)

    def num_before(self, step: int) -> int:
        """Return the number of consecutive dropped steps before `step`."""
        count = 0
        while step - 1 - count in self.steps:
            count += 1
        return count


def _read(store: CheckpointStore) -> list[int]:
    path = store.folder / SKIPPED_FILE
    try:
        return [int(step) for step in read_document(path)["steps"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "remove it: the search will find such steps again"
        raise user_error(f"{path} cannot be read", got=error, expected='{"steps": [...]}', fix=fix) from error


class Recovery:
    """Policy for steps that are not finite; `roll_back` loads the newest checkpoint and returns its step."""

    def __init__(self, policy: training.NonFinite, *, skipped: SkippedSteps, roll_back: Callable[[], int]) -> None:
        self._policy, self.skipped, self._roll_back = policy, skipped, roll_back

    def handle(self, error: NonFiniteError) -> None:
        """Prepare to continue without the step, or raise `error`, by the policy or if it did not help; collective."""
        if self._policy == "stop":
            raise error
        if self._policy == "skip":
            self._skip(error)
        else:
            self._roll_back_to_checkpoint(error)

    def _skip(self, error: NonFiniteError) -> None:
        if error.in_weights:
            log.error("on_nonfinite: skip does not help if weights are not finite; set `on_nonfinite: rollback`")
            raise error
        if self.skipped.num_before(error.step) >= MAX_CONSECUTIVE:
            log.error(f"nonfinite: {MAX_CONSECUTIVE} consecutive steps are already skipped")
            raise error
        log.warning(f"step {error.step} is skipped (on_nonfinite: skip): {_first_line(error)}{_locations(error)}")
        self.skipped.add(error.step, event="skipped", reason=_first_line(error), ranks=error.found)

    def _roll_back_to_checkpoint(self, error: NonFiniteError) -> None:
        checkpoint = self._roll_back()
        last_update = error.step - 1 - self.skipped.num_before(error.step)  # the last step with an update
        # Otherwise the weights went bad in memory, not by an update.
        bad_step = last_update if error.in_weights and last_update > checkpoint else error.step
        if bad_step in self.skipped.steps:
            log.error(f"nonfinite: step {bad_step} is already skipped, which did not help")
            raise error
        if sum(step > checkpoint for step in self.skipped.steps) >= MAX_SINCE_CHECKPOINT:
            log.error(f"nonfinite: {MAX_SINCE_CHECKPOINT} steps after checkpoint {checkpoint} are already skipped")
            raise error
        log.warning(
            f"back to step {checkpoint}; step {bad_step} is skipped (on_nonfinite: rollback): "
            f"{_first_line(error)}{_locations(error)}"
        )
        self.skipped.add(bad_step, event="rolled back", reason=_first_line(error), to=checkpoint, ranks=error.found)


def _first_line(error: NonFiniteError) -> str:
    return str(error).partition("\n")[0]


def _locations(error: NonFiniteError) -> str:
    return "".join(f"; rank {rank}: {location}" for rank, location in error.found.items())
