"""Scheduler-independent job."""

from dataclasses import dataclass

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"})


@dataclass(frozen=True, kw_only=True)
class SchedulerJob:
    """A job of the scheduler."""

    id: str
    name: str = ""  # shared by all jobs of one driver
    state: str  # in Slurm's terms, such as PENDING, RUNNING, COMPLETED, OUT_OF_MEMORY
    reason: str = ""  # of waiting or ending
    comment: str = ""  # rule and wildcards, as `rule_tiles_wildcards_dataset=...` or `group_prepare`
    nodes: str = ""
    status: int | None = None  # 128 + n after signal n
    elapsed: str = ""  # HH:MM:SS

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
        return self.waits or self.runs

    @property
    def title(self) -> str:
        """Rule and wildcards for messages: `tiles dataset=sentinel2`."""
        rule, _, wildcards = self.comment.partition("_wildcards_")
        return f"{rule.removeprefix('rule_').removeprefix('group_')} {wildcards.replace(',', ' ')}".strip() or self.name
