"""Scheduler requests of jobs and launch of their ranks, independent of where the workflow is read."""

import shlex
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path

from dithc.config import ExperimentConfig
from dithc.core.logging import user_error
from dithc.workflow.jobs.benches import options
from dithc.workflow.jobs.sizing import UNKNOWN_MINUTES, ResourceEstimate, needs

# Memory of a node that jobs leave for the engine and the operating system.
RESERVED_MB = 500
READING_CORES = 16  # default cores of a job that reads scenes, one per process
RANKED = ("train", "sample", "restore")  # stages that run as several ranks
PREPARATION = ("synthesize", "ingest", "tiles")  # stages of a dataset that form a group, in order
RESUMED = ("train", "sample", "restore")  # stages that stop before their walltime ends and continue in another job
MEMORY_FIX = {
    "train": "lower `micro_batch_size`, set `activation_checkpointing: block` or `sharding: zero1`, or use more or larger nodes",
    "sample": "lower `batch_size` of the evaluation, or use larger nodes",
    "restore": "lower `block_size` of the restoration, or use larger nodes",
}


class JobResources:
    """Cores (of a node, or of the workflow without a scheduler), memory, walltime and launch of an experiment's jobs."""

    def __init__(self, experiment: ExperimentConfig, *, cores: int | None) -> None:
        self.experiment, self.machine = experiment, experiment.machine
        self.cores = self.machine.cpus_per_node or cores or 1
        self._needs = cache(self._estimate)

    def threads(self, stage: str) -> int:
        """Return the cores of a stage's job per node, for all its ranks."""
        if stage not in RANKED:
            default = READING_CORES if stage == "ingest" else self.cores
            return min(self.experiment.resources_of(stage).cpus or default, self.cores)
        ranks = self.machine.launched_per_node
        return ranks * self.rank_cpus if ranks else self.cores

    @property
    def prologue(self) -> str:
        """Shell code that runs the site's `machine.prologue` before a command and stops with an error if a line fails."""
        if self.machine.prologue is None:
            return ""
        path = Path(self.machine.prologue).resolve()
        error = user_error(
            f"machine.prologue {path}",
            got="a line failed (see above), or the file does not exist",
            expected="a file of shell lines that all succeed in a non-interactive shell",
            fix=f"run bash -e {shlex.quote(str(path))}; `module` may require /etc/profile.d/modules.sh or lmod.sh",
        )
        report = shlex.quote(f"printf '%s\\n' {shlex.quote(f'error: {error}')} >&2; exit 2")
        return f"trap {report} EXIT; set -e; source {shlex.quote(str(path))}; trap - EXIT; "

    @property
    def rank_cpus(self) -> int:
        """Cores per rank; all cores of a node if the machine chooses the number of ranks."""
        return self.machine.cpus_per_rank or max(1, self.cores // (self.machine.launched_per_node or 1))

    @property
    def tasks(self) -> int:
        """Ranks for the scheduler; 0 if `tasks_per_node` applies, because Slurm's plugin accepts only one of the two."""
        return 0 if self.tasks_per_node else self.machine.ranks or self.machine.nodes

    @property
    def tasks_per_node(self) -> int:
        per_node = self.machine.launched_per_node or 1
        return per_node if self.machine.scheduler == "slurm" and per_node > 1 else 0

    @property
    def mpi(self) -> str:
        """Launcher in the terms of the scheduler's plugin; empty for one rank."""
        return self.machine.launcher if self.machine.ranks != 1 else ""

    def launch(self, stage: str, name: str) -> str:
        machine = self.machine
        launcher = self.mpi or "none"
        size: dict[str, object] = {"ranks": machine.ranks, "cpus_per_rank": self.rank_cpus}
        if machine.ranks is None:
            size = {"strategy": machine.strategy, "cpus_per_rank": machine.cpus_per_rank}
            size |= {} if machine.cpus_per_rank else {"cpus_per_node": self.cores}
        srun_mpi = machine.srun_mpi if launcher == "srun" and machine.srun_mpi != "auto" else None
        minutes = self.runtime(stage, name) if machine.stop_before_walltime else None
        scheduler = machine.scheduler if machine.scheduler != "none" else None
        limits = options(srun_mpi=srun_mpi, walltime_minutes=minutes, scheduler=scheduler)
        return shlex.join([*options(launcher=launcher, nodes=machine.nodes, **size), *limits])

    def mem_mb(self, stage: str, name: str = "") -> int:
        requested = self.experiment.resources_of(stage).mem_mb
        if requested is None and stage == "bench":  # alone on its node
            return max(RESERVED_MB, (self.machine.memory_per_node_mb or 16_000) - 2 * RESERVED_MB)
        return requested or self._needs(stage, name).memory_mb

    def runtime(self, stage: str, name: str = "") -> int:
        """Return the walltime in minutes that a job requests.

        Jobs of a group run in one job of the scheduler and share its limit. Estimates are reduced before set walltimes, down to
        a tenth of the limit.
        """
        requested, longest = self._requested(stage, name), self.machine.max_walltime_minutes
        if longest is None:
            return requested
        fixed, estimated = self._group_minutes(stage, name)
        left = min(estimated, max(longest - fixed, longest // 10))
        if self.experiment.resources_of(stage).runtime is None:
            return max(1, requested * left // estimated)
        return max(1, requested * min(fixed, longest - left) // fixed)

    def _requested(self, stage: str, name: str) -> int:
        return self.experiment.resources_of(stage).runtime or self._needs(stage, name).minutes

    def _group_minutes(self, stage: str, name: str) -> tuple[int, int]:
        """Return the set and the estimated minutes of the longest group with a job."""
        totals = []
        for group in self._groups(stage, name):
            total = [0, 0]
            for member, names in group:
                concurrent = self._concurrent(member)
                minutes = sorted((self._requested(member, item) for item in names), reverse=True)
                total[self.experiment.resources_of(member).runtime is None] += sum(minutes[::concurrent])
            totals.append((total[0], total[1]))
        return max(totals, key=sum)

    def _concurrent(self, stage: str) -> int:
        """Return how many jobs of a stage run at the same time in a group; Slurm's plugin runs one after the other."""
        if self.machine.scheduler == "slurm":
            return 1
        return self.cores if stage == "fid" else max(1, self.cores // self.threads(stage))

    def group_cpus(self, stage: str) -> int:
        """Return the cores of a node that a job occupies in the estimate of its group's walltime."""
        return self.cores // self._concurrent(stage)

    def _groups(self, stage: str, name: str) -> list[list[tuple[str, list[str]]]]:
        """Return the groups with a job, as stages in order with the names of jobs that may run concurrently."""
        experiment = self.experiment
        if stage in PREPARATION:
            is_synthetic = experiment.datasets[name].source.synthetic is not None
            return [[(member, [name]) for member in PREPARATION if is_synthetic or member != "synthesize"]]
        if stage in ("codec", "latents"):
            codec = name if stage == "codec" else experiment.datasets[name].codec
            latents = [item for item, dataset in experiment.datasets.items() if dataset.codec == codec]
            if experiment.codecs[codec].kind == "kl-vae":
                return [[("codec", [codec]), ("latents", latents)]]
        if stage in ("features", "fid"):  # features of real tiles, and features and scores of their evaluations
            evaluations = [experiment.evaluations[item] for item in experiment.scored]
            sets = Counter(
                (item.extractor, experiment.runs[item.run].dataset, item.real_split, item.num_real_images)
                for item in evaluations
                if stage == "fid" or item.extractor == name
            )
            groups = [[("features", [key[0]] * (1 + count)), ("fid", [""] * count)] for key, count in sets.items()]
            return groups or [[(stage, [name])]]  # an experiment without scores
        return [[(stage, [name])]]

    def check(self, planned: list[tuple[str, str]]) -> list[str]:
        """Return sentences about planned jobs (stage, name) with less walltime than their estimate or setting.

        UserError if a job can never start: too much memory for a node, or a walltime beyond the limit.
        """
        faults, notes, unknown = [], [], []
        longest = self.machine.max_walltime_minutes
        for stage, name in planned:
            memory, limit = self.mem_mb(stage, name), self.machine.memory_per_node_mb
            if limit is not None and memory > limit - RESERVED_MB:
                fix = MEMORY_FIX.get(stage, "use nodes with more memory")
                node = f"a node has {limit} MB, {RESERVED_MB} of them for the system"
                faults.append(f"{stage} {name}: {memory} MB of memory (`resources.{stage}.mem_mb`), {node}; {fix}")
            runtime, estimate = self.experiment.resources_of(stage).runtime, self._needs(stage, name)
            job, key = f"{stage} {name}", f"resources.{stage}.runtime"
            if runtime is None and not estimate.is_known:
                unknown.append(job)
            elif longest is None:
                continue
            elif runtime is None and estimate.minutes > longest:
                consequence = "it continues in further jobs" if stage in RESUMED else "the scheduler may end it early"
                notes.append(f"{job}: up to {estimate.minutes} minutes of work, its job has {longest}: {consequence}")
            elif runtime is not None and runtime > longest:
                faults.append(f"{job}: {key} is {runtime} minutes, jobs end after {longest}")
            elif runtime is not None and (granted := self.runtime(stage, name)) < runtime:
                total = f"the stages of its group request {sum(self._group_minutes(stage, name))} minutes"
                notes.append(
                    f"{job}: requests {granted} of {key} {runtime}: {total}, their common job may run for {longest}"
                )
        if unknown:
            request = f"request up to {longest or UNKNOWN_MINUTES} minutes; `resources: {{<stage>: {{runtime: ...}}}}` sets less"
            notes.append(f"source files are not visible here: {', '.join(dict.fromkeys(unknown))} {request}")
        if faults:
            raise user_error(
                "jobs that this cluster can never start",
                got="".join(f"\n    {line}" for line in dict.fromkeys(faults)),
                expected="requests within memory_per_node_mb and max_walltime_minutes of `machine` in the profile",
                fix="follow these hints; if an estimate is too high, set `resources: {<stage>: {mem_mb: ..., runtime: ...}}`",
            )
        return list(dict.fromkeys(notes))

    def check_workers(self, planned: Collection[str]) -> None:
        """Raise UserError if workers of local updates, which wait for each other, cannot run here at the same time.

        `planned` are runs with jobs on this machine.
        """
        threads = self.threads("train")
        for name in planned:
            local = self.experiment.runs[name].local_updates
            workers = [] if local is None else [worker for worker in local.workers if worker in planned]
            if len(workers) * threads > self.cores and len(workers) > 1:
                raise user_error(
                    f"workers of local updates on this machine: {', '.join(workers)}",
                    got=f"{threads} of {self.cores} cores for each of them",
                    expected="cores for all of them at the same time, because they wait for each other",
                    fix=f"set `machine: {{ranks_per_node: 1, cpus_per_rank: {max(1, self.cores // len(workers))}}}`, or start "
                    "the workers on different machines, with one of these runs in each configuration",
                )

    def _estimate(self, stage: str, name: str) -> ResourceEstimate:
        machine, cores = self.machine, self.threads(stage)
        per_node, ranks = machine.launched_per_node or 1, machine.ranks or machine.nodes
        limit = (machine.memory_per_node_mb or 0) - RESERVED_MB
        while True:
            estimate = needs(self.experiment, stage, name, ranks_per_node=per_node, ranks=ranks, cores=cores)
            if stage != "ingest" or cores == 1 or limit < 0 or estimate.memory_mb <= limit:
                return estimate
            cores -= 1  # fewer concurrent readers need less memory
