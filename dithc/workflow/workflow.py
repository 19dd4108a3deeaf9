"""Interface of the rule files."""

import atexit
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from dithc.core.logging import UserError, get_logger, setup_logging, user_error
from dithc.engine.scheduler import slurm
from dithc.workflow.driver import Driver
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.jobs import BenchmarkArguments, JobResources
from dithc.workflow.preflight import (
    check_inputs,
    check_owner,
    damage_message,
    find_damaged,
    find_restorable,
    read_digest,
)
from dithc.workflow.reproduction import PaperFiles
from dithc.workflow.snakemake_api import ConfigArguments, add_outputs, config_arguments

log = get_logger("dithc.workflow")


class Workflow(ExperimentGraph):
    """Experiment for the workflow engine, with benchmarks, job resources, paper targets and driver."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        files: Sequence[Any] = (),
        overrides: Sequence[ConfigArguments] = (),
        cores: int | None = None,
    ) -> None:
        super().__init__(config, files=files, overrides=overrides)
        self.benches = BenchmarkArguments(self.experiment)
        self.jobs = JobResources(self.experiment, cores=cores)
        configurations = [os.path.relpath(file) for file in files] or [self.config]
        self.paper = PaperFiles(self.experiment, root=self.root, cores=self.jobs.cores, configurations=configurations)
        self.driver = Driver(self, self.jobs)
        self.engine: Any = None
        self._reproducible: dict[str, str] | None = None

    @classmethod
    def of(cls, engine: Any, config: Mapping[str, Any]) -> Self:
        """Return the workflow for Snakemake's `workflow` and `config`, overridden by profiles and the command line.

        UserError if Snakemake was started outside `dithc run` in a locale without UTF-8.
        """
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            fix = "start it by `dithc run`, or: export PYTHONUTF8=1"
            raise user_error("encoding of file names", got=f"{encoding}, from the locale", expected="UTF-8", fix=fix)
        if engine.is_main_process:
            setup_logging()
        files, cores = engine.overwrite_configfiles, engine.resource_settings.cores
        instance = cls(config, files=files, overrides=config_arguments(engine), cores=cores)
        instance.engine = engine
        if engine.is_main_process:
            atexit.register(instance._report_unknown_targets)  # Snakemake rejects them before it calls any hook
        return instance

    def _report_unknown_targets(self) -> None:
        """Log each target that no rule produces, with the closest targets."""
        settings, rules = self.engine.dag_settings, list(self.engine.rules)
        single = [rule for rule in rules if not rule.has_wildcards()]
        known = [*(rule.name for rule in single), *(str(path) for rule in single for path in rule.products())]
        for target in sorted(settings.targets) if settings is not None else ():
            path = os.path.normpath(target)
            if target in known or any(rule.is_producer(path) for rule in rules):
                continue
            near = get_close_matches(target, dict.fromkeys([*known, *self.manifests]), n=3, cutoff=0.5)
            is_config = target.endswith((".yaml", ".yml"))
            error = user_error(
                "unknown target of the run",
                got=target,
                expected=", ".join(near or ["all", f"{self.root}/report.html"]),
                fix=f"add `--configfile {target}`"
                if is_config
                else "correct the target; `snakemake --list` lists all rules",
            )
            sys.stdout.flush()  # output of Snakemake
            log.error(str(error))

    def scene_input_in_plan(self, dataset: str) -> list[str]:
        """Return `scene_input` while the engine plans.

        The first call marks damaged results in the plan for a rebuild, without rerunning jobs behind reproducible ones. Nothing
        on disk changes, so a dry run shows the same plan. Jobs, which evaluate the workflow again, skip this.
        """
        if self._reproducible is None and self.engine is not None and self.engine.is_main_process:
            self._reproducible = self._mark_damaged(self.engine)
        return self.scene_input(dataset)

    def _mark_damaged(self, engine: Any) -> dict[str, str]:
        """Mark results to rebuild; returns the digests of reproducible results."""
        faults = find_damaged(self.manifests)
        for path, reasons in faults.items():
            log.warning(damage_message(path, reasons))
        atexit.register(self._report_errors, engine)  # a dry run has no hooks, and users read its end
        settings = engine.dag_settings
        reproducible = {} if settings.forceall or settings.forcerun else find_restorable(self, faults)
        engine.dag.forcefiles.update(faults.keys() - reproducible.keys())
        add_outputs(engine.dag, set(reproducible))
        return reproducible

    def _report_errors(self, engine: Any) -> None:
        """Report after a dry run the errors of inputs and requests that a run would have, and exit with status 1."""
        if not engine.dryrun:
            return
        jobs = list(engine.dag.needrun_jobs(exclude_finished=False))
        try:
            self._check_owner(jobs)
            check_inputs(self, {job.rule.name for job in jobs})
            planned = [(job.rule.name, self._name(job)) for job in jobs]
            if self.driver.queue is not None:
                self.driver.check_jobs(planned)
            else:
                self.driver.check_workers(planned)
        except UserError as error:
            sys.stdout.flush()  # output of the plan
            log.error(f"a run of this plan would stop before its first job: {error}")
            sys.stderr.flush()
            os._exit(1)  # an exception here would not change the exit status

    def finish(self) -> None:
        """Report rebuilt results that changed, after all jobs."""
        for path, digest in (self._reproducible or {}).items():
            if read_digest(path) not in (None, digest):
                log.warning(
                    f"{path} was rebuilt from the same settings and inputs, but its bytes differ: downstream results still use "
                    "the earlier bytes; start the same command again to rebuild them"
                )

    def start(self) -> None:
        """Prepare the first job; raises UserError if the run cannot start (`check_inputs`, `Driver.start`)."""
        engine = self.engine
        jobs = list(engine.dag.needrun_jobs())
        self._check_owner(jobs)
        planned = [(job.rule.name, self._name(job)) for job in jobs]
        check_inputs(self, {rule for rule, _ in planned})
        # The slurm plugin submits all jobs of a driver under one random name. The generic plugin calls dithc-job-submit, which is
        # installed next to the interpreter and inherits a variable.
        submitter = getattr(engine.scheduler, "_executor", None)
        name = getattr(submitter, "run_uuid", None) or uuid.uuid4().hex
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        os.environ |= {"DITHC_DRIVER_NAME": name, "PATH": path}
        executor = "local" if engine.local_exec else str(engine.executor_plugin.name)
        if executor == "slurm":
            _check_submission(jobs)
        self.driver.start(planned, executor=executor, name=name, engine=submitter)

    def _check_owner(self, jobs: Sequence[Any]) -> None:
        is_first = not Path(self.config).exists()
        paths = (path for job in jobs for path in (*job.output, *(job.log if is_first else ())))
        check_owner(Path(self.root), map(Path, paths))

    def _name(self, job: Any) -> str:
        """Return the dataset, codec, run ... of a job; for features of an evaluation, its extractor."""
        wildcards = dict(job.wildcards.items())
        if job.rule.name == "features_generated":
            return self.extractor_name(wildcards["evaluation"])
        keys = ("run", "extractor", "evaluation", "restoration", "codec", "dataset")
        return next((str(wildcards[key]) for key in keys if key in wildcards), "")


def _check_submission(jobs: Sequence[Any]) -> None:
    """Raise UserError if Slurm rejects the partition or account of a job, because Snakemake drops its message for job groups."""
    keys = ("partition", "account")
    resources = [{key: job.resources.get(f"slurm_{key}") for key in keys} for job in jobs if not job.is_local]
    for options in dict.fromkeys(tuple(f"--{key}={value}" for key, value in one.items() if value) for one in resources):
        if reason := slurm.rejection(options):
            raise user_error(
                "Slurm rejects the jobs",
                got=f"sbatch {' '.join(options)}: {'; '.join(reason.splitlines())}",
                expected="a partition and an account that accept jobs",
                fix="correct `slurm_partition` and `slurm_account` in the profile; `dithc doctor --profile FOLDER` tests them",
            )
