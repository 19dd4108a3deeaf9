"""Files of plans: the plan of a run in its results, and predicted and measured numbers of earlier runs on this machine."""

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from dithc.config import MachineConfig, training
from dithc.core.caches import cache_home
from dithc.core.integrity import dump_checksummed, load_document
from dithc.core.logging import get_logger

log = get_logger(__name__)


def plan_path(results: Path, run: str) -> Path:
    """Return the file with the plan of a run, in the results of its experiment."""
    return results / "plans" / f"{run}.json"


def write_plan(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dump_checksummed(dict(record)))


def read_plan(path: Path) -> Mapping[str, Any] | None:
    """Return a plan, or None if it does not exist or is damaged."""
    try:
        record: Mapping[str, Any] = load_document(path.read_text())
    except (OSError, ValueError):
        return None
    return record


def estimate_of(
    record: Mapping[str, Any] | None, run: training.RunConfig, machine: MachineConfig
) -> Mapping[str, Any] | None:
    """Return the estimate of a plan for exactly these settings (seconds, bytes of a node), or None."""
    if record is None or record["network"] != network_settings(run):
        return None
    for row in record["plans"]:
        chosen, settings = row["machine"], row["run"]
        ranks = row["ranks"]
        share = -(-run.global_batch_size // row["data_ranks"])
        is_equal = all(getattr(machine, name) in (value, None) for name, value in chosen.items())
        micro_batch = min(run.micro_batch_size or share, share)
        is_equal &= micro_batch == settings["micro_batch_size"] and (machine.ranks or ranks) == ranks
        if is_equal and run.activation_checkpointing == settings["activation_checkpointing"]:
            return dict(row)
    return None


def network_settings(run: training.RunConfig) -> dict[str, Any]:
    """Return the settings of a run on which its seconds and bytes depend, besides those of a plan."""
    names = ("dtype", "global_batch_size")
    return {name: getattr(run, name) for name in names} | {
        name: getattr(run, name).model_dump(mode="json") for name in ("model", "optimizer")
    }


def append_outcome(predicted: Mapping[str, Any], *, seconds: float, rank_bytes: int | None) -> None:
    """Append the predicted and the measured numbers of a finished run to the file of this machine."""
    path = _outcomes_path()
    if path is None:
        return
    row = {"predicted_seconds": predicted["seconds"], "seconds": seconds, "machine": platform.node()}
    row |= {"predicted_rank_bytes": sum(predicted["memory"].values()), "rank_bytes": rank_bytes}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    except OSError as error:
        log.warning(f"the outcome of the plan is not recorded: {error}")


def earlier_errors() -> tuple[int, float, float]:
    """Return the number of earlier runs with a plan here, and the median relative errors of seconds and memory."""
    path, rows = _outcomes_path(), list[dict[str, Any]]()
    for line in path.read_text(errors="replace").splitlines() if path is not None and path.exists() else ():
        with suppress(ValueError):  # a line that was cut
            rows.append(json.loads(line))
    rows = [row for row in rows if row.get("machine") == platform.node()]
    seconds = [abs(row["predicted_seconds"] / row["seconds"] - 1) for row in rows]
    memory = [abs(row["predicted_rank_bytes"] / row["rank_bytes"] - 1) for row in rows if row["rank_bytes"]]
    return len(rows), median(seconds or [0.0]), median(memory or [0.0])


def _outcomes_path() -> Path | None:
    home = cache_home()
    return home and home / "dithc/plans.jsonl"
