"""All that rule files import."""

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from dithc.log import logger, setup
from dithc.workflow.benches import Benches
from dithc.workflow.driver import Driver
from dithc.workflow.inputs import check_inputs
from dithc.workflow.jobs import Jobs
from dithc.workflow.layers import Words, words_of
from dithc.workflow.matrix import Matrix
from dithc.workflow.products import damaged, told

log = logger("dithc.workflow")


class Workflow(Matrix):
    """An experiment as the workflow engine sees it.

    Attributes:
        benches: arguments of what it measures.
        jobs: what its jobs ask for.
        driver: what is done around them.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        files: Sequence[Any] = (),
        above: Sequence[Words] = (),
        cores: int | None = None,
    ) -> None:
        super().__init__(config, files=files, above=above)
        self.benches = Benches(self.experiment)
        self.jobs = Jobs(self.experiment, cores=cores)
        self.driver = Driver(self, self.jobs)
        self._has_looked = False

    @classmethod
    def of(cls, engine: Any, config: Mapping[str, Any]) -> Self:
        """That of Snakemake's `workflow`, and of its `config`, over which profiles and command line are laid key by key."""
        if engine.is_main_process:
            setup()
        files, cores = engine.overwrite_configfiles, engine.resource_settings.cores
        return cls(config, files=files, above=words_of(engine), cores=cores)

    def scene_input_in(self, engine: Any, dataset: str) -> list[str]:
        """As `scene_input`, asked by the engine while it makes its plan.

        The first time, results that are not whole are marked as to be made again, if the plan has them. Nothing on disk is
        changed, so a dry run shows the same plan. Jobs, which read the workflow's files again, do not look.

        Args:
            engine: Snakemake's `workflow`.
            dataset: name of the data set.
        """
        if not self._has_looked and engine.is_main_process:
            self._has_looked = True
            faults = damaged(self.manifests)
            engine.dag.forcefiles.update(faults)
            if faults:
                setup()
            for path, found in faults.items():
                log.warning(told(path, found))
        return self.scene_input(dataset)

    def start(self, engine: Any) -> None:
        """Called by the engine before the first job.

        Args:
            engine: Snakemake's `workflow`, whose plan is made.

        Raises:
            UserError: the work cannot begin (`check_inputs`, `Driver.start`).
        """
        planned = [(job.rule.name, self._name(job)) for job in engine.dag.needrun_jobs()]
        check_inputs(self.experiment, {rule for rule, _ in planned})
        # The slurm plugin submits all jobs of a driver under one random name. The generic one calls dithc-job-submit, which
        # stands beside the interpreter and inherits a variable.
        submitter = getattr(engine.scheduler, "_executor", None)
        name = getattr(submitter, "run_uuid", None) or uuid.uuid4().hex
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        os.environ |= {"DITHC_DRIVER_NAME": name, "PATH": path}
        executor = "local" if engine.local_exec else str(engine.executor_plugin.name)
        self.driver.start(planned, executor=executor, name=name, engine=submitter)

    def _name(self, job: Any) -> str:
        """Data set, codec, run, extractor or evaluation of a job of the engine; an evaluation's extractor for its features."""
        words = dict(job.wildcards.items())
        if job.rule.name == "features_generated":
            return self.extractor_name(words["evaluation"])
        keys = ("run", "extractor", "evaluation", "codec", "dataset")
        return next((str(words[key]) for key in keys if key in words), "")
