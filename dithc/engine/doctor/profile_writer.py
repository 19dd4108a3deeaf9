"""Profile for the present Slurm cluster, from Slurm's configuration and a one-second job."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dithc.core.artifacts import outputs
from dithc.core.logging import get_logger, user_error
from dithc.engine.doctor.profiles import PROFILES
from dithc.engine.scheduler import run_probe_job, slurm_site

TRIAL_SECONDS, TRIAL_MINUTES = 120.0, 5
RESERVED_NAMES = {"default", "local", "generic", "slurm", "machines"}
# Finished jobs stay in the queue this long, so that a driver that polls every 15 to 30 s finds them.
MIN_JOB_AGE_SECONDS = 120
log = get_logger("dithc.engine.doctor")


@dataclass(frozen=True, kw_only=True)
class WrittenProfile:
    """Written profile. `link` in the working folder is None if another file has that name; `notes` give reasons."""

    path: Path
    link: Path | None
    notes: list[str]


def write_profile(
    name: str, site: slurm_site.SlurmSite, *, partition: str | None = None, nodes: int = 1, account: str | None = None
) -> WrittenProfile:
    """Write `profiles/<name>/config.yaml`, and a link `<name>` in the working folder for `--profile <name>`.

    `partition` and `account` are the user's defaults if None; `nodes` are those of a training run. UserError if the name is
    taken, or the partition does not exist or is down.
    """
    folder = PROFILES / name
    if not name.replace("-", "").replace("_", "").isalnum() or name in RESERVED_NAMES:
        raise user_error(
            "name of the profile",
            got=name,
            expected="letters, digits and -, except names of dithc's profiles",
            fix="use the name `cluster`",
        )
    target = site.partition(partition)
    if target is None or not target.kinds:
        visible = ", ".join(item.name for item in site.partitions if item.kinds)
        raise user_error(
            "partition of Slurm",
            got=partition or "no default partition that is up",
            expected=f"one of {visible or 'none: none is visible to this user'}",
            fix="pass --partition",
        )
    if nodes > (target.max_nodes or nodes) or nodes > sum(len(kind.names) for kind in target.kinds):
        raise user_error(
            "nodes per training run",
            got=nodes,
            expected=f"at most the nodes and the limit of partition {target.name}",
            fix="lower --nodes",
        )
    dies, source = _dies(target, account)
    text, notes = profile_text(name, site, target, dies=dies, nodes=nodes, account=account)
    folder.mkdir(parents=True, exist_ok=True)
    outputs.write(folder / "config.yaml", text)
    return WrittenProfile(path=folder / "config.yaml", link=_link(name), notes=[source, *notes])


def profile_text(
    name: str,
    site: slurm_site.SlurmSite,
    partition: slurm_site.Partition,
    *,
    dies: int,
    nodes: int,
    account: str | None,
) -> tuple[str, list[str]]:
    """Return the profile as YAML, and its choices with reasons."""
    cpus = min(kind.cpus for kind in partition.kinds)
    memory = min(filter(None, [*(kind.memory_mb for kind in partition.kinds), partition.max_memory_mb]))
    ranks = dies if cpus % dies == 0 else 1
    machine: dict[str, Any] = {"launcher": "srun", "scheduler": "slurm", "nodes": nodes}
    machine |= {"ranks_per_node": ranks, "cpus_per_rank": cpus // ranks, "cpus_per_node": cpus}
    machine |= {"memory_per_node_mb": memory, "stop_before_walltime": True}
    count, limit = sum(len(kind.names) for kind in partition.kinds), "without limit"
    if partition.max_walltime_minutes:
        machine["max_walltime_minutes"] = partition.max_walltime_minutes
        limit = f"{partition.max_walltime_minutes} minutes"
    notes = [
        f"partition {partition.name}: {count} node(s), at least {cpus} CPUs and {memory} MB each; jobs may run {limit}",
        f"a training run uses {nodes} node(s) with {ranks} rank(s) of {cpus // ranks} CPUs each",
    ]
    notes += ["nodes differ: using the sizes of the smallest"] if len(partition.kinds) > 1 else []
    status_command = "sacct" if site.accounting and site.min_job_age_seconds < MIN_JOB_AGE_SECONDS else "squeue"
    age, accounting = site.min_job_age_seconds, "accounting" if site.accounting else "no accounting"
    notes += [
        f"jobs are polled by {status_command}: finished jobs stay {age} s in the queue, and there is {accounting}"
    ]
    if not site.job_requeue:
        notes.append("this Slurm does not requeue jobs automatically (JobRequeue=0); dithc's jobs request it")
    flow = ", ".join(f"{key}: {json.dumps(value)}" for key, value in machine.items())
    lines = [
        f"# Slurm {site.version}, partition {partition.name}; written by `dithc doctor --write-profile {name}`, edit "
        "as needed.",
        f"# Test it with `dithc doctor --profile {name}`, use it with `snakemake --profile {name}`.",
        "executor: slurm",
        "jobs: 64",
        "latency-wait: 60",
        "# A job returns to the queue if it is preempted, its node fails, or it stopped before its walltime. A job that",
        "# failed permanently is never rerun.",
        "slurm-requeue: true",
        "slurm-keep-successful-logs: true",
        "slurm-init-seconds-before-status-checks: 10",
        "# With sacct the plugin treats a canceled job as running, and waits forever.",
        f"slurm-status-command: {status_command}",
        f"resources: [cpus_per_node={cpus}]",
        "set-resource-scopes: [cpus_per_node=local]",
        "default-resources:",
        f"  slurm_partition: {json.dumps(partition.name)}",
        *([f"  slurm_account: {json.dumps(account)}"] if account else []),
        "  slurm_extra: \"'--open-mode=append'\"",
        "config:",
        f"  - {json.dumps(f'machine={{{flow}}}')}",
    ]
    return "\n".join(lines) + "\n", notes


def _dies(partition: slurm_site.Partition, account: str | None) -> tuple[int, str]:
    """Return the dies of a node of the partition, from a job on it or from Slurm's configuration, and the reason."""
    kind = next((kind for kind in partition.kinds if kind.is_up), partition.kinds[0])
    sockets = kind.sockets if 1 <= kind.sockets < kind.cpus else 1
    source = f"{sockets} rank(s) per node, from the sockets in Slurm's configuration"
    if not kind.is_up:
        return sockets, f"no node of {partition.name} accepts jobs now: {source}"
    node = kind.names[0]
    rows, error = try_ranks(
        partition.name, nodes=1, ranks=1, cpus=kind.cpus, node=node, account=account, launcher="none"
    )
    if not rows:
        return sockets, f"a job on {node} failed ({error}): {source}"
    return int(rows[0]["dies"]), f"node {node} has {rows[0]['dies']} die(s): {rows[0]['machine'].splitlines()[0]}"


def try_ranks(
    partition: str,
    *,
    nodes: int,
    ranks: int,
    cpus: int,
    launcher: str,
    srun_mpi: str = "auto",
    node: str | None = None,
    account: str | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Start ranks by a job, like a training run; return their properties (`node_probe`), or the reason of a failure."""
    dithc = Path(sys.executable).parent / "dithc"
    with TemporaryDirectory(prefix=".dithc-trial-", dir=Path.cwd()) as directory:
        folder = Path(directory)
        token, out = folder / "token", folder / "seen.json"
        token.write_text(str(os.getpid()))
        command = (
            f"{dithc} launch --launcher {launcher} --nodes {nodes} --ranks {ranks} --cpus-per-rank {cpus} --srun-mpi "
            f"{srun_mpi} -- {dithc} doctor --probe-node {out} --token {token}"
        )
        per_node = max(1, ranks // nodes)
        options = [f"--partition={partition}", f"--nodes={nodes}"]
        options += [f"--ntasks-per-node={per_node}", f"--cpus-per-task={cpus}"]
        options += [f"--time={TRIAL_MINUTES}", f"--mem={1000 * per_node}", "--job-name=dithc-trial"]
        options += [f"--nodelist={node}"] if node else []
        options += [f"--account={account}"] if account else []
        log.info(
            f"submitting a one-second job on {node or f'{nodes} node(s)'} of partition {partition}, {ranks} rank(s) ..."
        )
        error = run_probe_job(options, command, leaves=out, log=folder / "log", wait_seconds=TRIAL_SECONDS)
        if error is not None:
            return [], error
        rows = json.loads(out.read_text())
        return [row | {"token_seen": row["token"] == str(os.getpid())} for row in rows], ""


def _link(name: str) -> Path | None:
    link, target = Path(name), PROFILES / name
    if link.is_symlink() and link.readlink().parent == PROFILES:
        link.unlink()
    elif os.path.lexists(link):
        return None
    link.symlink_to(target)
    return link
