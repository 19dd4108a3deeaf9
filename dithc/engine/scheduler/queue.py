"""Scheduler-independent job."""

from dataclasses import dataclass

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"})


@dataclass(frozen=True, kw_only=True)
class SchedulerJob:
    """A job of the scheduler.

    Attributes:
        name: submission name, shared by all jobs of one driver.
        state: in Slurm's terms, such as PENDING, RUNNING, COMPLETED, OUT_OF_MEMORY.
        reason: the scheduler's reason of waiting or ending.
        what: rule and wildcards, as `rule_tiles_wildcards_dataset=...` or `group_prepare`.
        status: exit status, 128 + n after signal n.
        elapsed: `HH:MM:SS`.
    """

    id: str
    name: str = ""
    state: str
    reason: str = ""
    what: str = ""
    nodes: str = ""
    status: int | None = None
    elapsed: str = ""

    @property
    def waits(self) -> bool:
        """True if the job is in the queue and not running."""
        return self.state in WAITING

    @property
    def runs(self) -> bool:
        """True if the job is running, starting or ending."""
        return self.state in RUNNING

    @property
    def active(self) -> bool:
        """True if the job is in the queue or running."""
        return self.waits or self.runs

    @property
    def title(self) -> str:
        """Rule and wildcards for messages: `tiles dataset=sentinel2`."""
        rule, _, wildcards = self.what.partition("_wildcards_")
        return f"{rule.removeprefix('rule_').removeprefix('group_')} {wildcards.replace(',', ' ')}".strip() or self.name
