"""States of an experiment's stages at one moment, from the scheduler first, then from files."""

import time
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from dithc.config import stage_spec
from dithc.core.artifacts import CheckpointStore, Manifest, digest, summaries
from dithc.core.integrity import load_document, parse_json, require_regular_file
from dithc.core.logging import UserError
from dithc.core.processes import STOPPED
from dithc.engine.scheduler import SchedulerJob, SchedulerQueue, explain_blocked, explain_end
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.monitor.log_tail import TrainingProgress, bar_of, error_of, tail, training_at
from dithc.workflow.monitor.stage_status import DriverInfo, StageStatus, State, joined, pace, span
from dithc.workflow.preflight import read_manifest
from dithc.workflow.stages import Stage

DIGEST = "?" * 12  # glob of a full digest, because a run's name may be a prefix of another's
SLACK_SECONDS = 2.0  # tolerance between the clocks of a file server and of a driver
SILENT_SECONDS, SILENT_STEPS = 120.0, 10  # a training run without a step for longer than both is reported


class StageInspector:
    """State of all stages at one moment; `matched` maps stage keys to their jobs."""

    def __init__(
        self,
        graph: ExperimentGraph,
        base: Path,
        *,
        stages: list[Stage],
        jobs: list[SchedulerJob],
        queue: SchedulerQueue | None,
        driver: DriverInfo | None,
        since: float = 0.0,
    ) -> None:
        self.graph, self.base, self.jobs, self.queue, self.driver = graph, base, jobs, queue, driver
        self.now = time.time()
        self.since = max(since, driver.started_at if driver is not None else 0.0) - SLACK_SECONDS
        self.matched: dict[str, SchedulerJob] = {}
        self.outdated: set[str] = set()  # outputs
        self._store, self._manifest = cache(self._find_store), cache(read_manifest)
        self._steps = cache(lambda run: store.steps() if (store := self._store(run)) is not None else [])
        self.titles = {stage.output: stage.title for stage in stages}

    def inspect(self, stage: Stage) -> StageStatus:
        job, output = self._job(stage), self.base / stage.output
        if job is not None:
            self.matched[stage.key] = job
        if job is not None and job.waits:
            return self._inactive(stage, "queued", describe_job(job))
        if job is not None and job.runs:
            return self._running(stage, location=describe_job(job))
        if output.exists():
            status = _done(stage, output, log=self.base / stage.log)
            reason = self._outdated(stage) if status.state == "done" else ""
            if reason:
                self.outdated.add(stage.output)
                return self._inactive(stage, "waiting", f"outdated: {reason}")
            store = self._store(stage.name) if stage.kind == "run" else None
            return (
                status if store is None else replace(status, message=joined(status.message, *_slow_ranks(store.folder)))
            )
        missing = next((path for path in stage.needs if not (self.base / path).exists()), None)
        if missing is not None:
            return self._inactive(stage, "waiting", f"for {self.titles.get(missing, missing)}")
        return self._unqueued(stage, job)

    def _outdated(self, stage: Stage) -> str:
        """Return why a result is outdated: its settings, its inputs or an earlier stage have changed; empty otherwise.

        Files of the user are not compared. Earlier stages have to be inspected before. A report without a manifest is
        outdated if it is older than an input, as for Snakemake.
        """
        if earlier := next((path for path in stage.needs if path in self.outdated), None):
            return f"{self.titles.get(earlier, earlier)} is outdated"
        output = self.base / stage.output
        if stage.kind == "report":
            made = output.stat().st_mtime
            inputs = [path for path in stage.needs if (self.base / path).exists()]
            newer = [path for path in inputs if (self.base / path).stat().st_mtime > made]
            return f"older than {self.titles.get(newer[0], newer[0])}" if newer else ""
        manifest = self._manifest(output) if output.suffix == ".json" else None
        name = self.graph.entry_name(manifest) if manifest is not None else None
        if manifest is None or name is None:
            return ""
        settings, own = stage_spec(self.graph.experiment, manifest.stage, name), manifest.spec
        changed = [key for key in settings | own if key not in settings or key not in own or settings[key] != own[key]]
        if changed:
            return f"made with other settings ({', '.join(changed)})"
        for path, used in manifest.inputs.items():
            source = self._manifest(self.base / path)
            if source is not None and source.digest != used:
                return f"made from an earlier {path}"
        return ""

    def _unqueued(self, stage: Stage, job: SchedulerJob | None) -> StageStatus:
        """Return the state of a stage with inputs, without output and without a job in the queue."""
        log = self.base / stage.log
        written = log.stat().st_mtime if log.exists() else None
        is_fresh = written is not None and written >= self.since
        job = None if job is not None and job.state == "COMPLETED" else job
        if job is not None and job.status == STOPPED:
            return self._inactive(stage, "waiting", "stopped after a checkpoint, to be rerun")
        error = error_of(tail(log)) if is_fresh else []
        if job is not None:
            job_log = self.queue.log(self.base, job) if self.queue is not None and not error else None
            why, fix = explain_end(job)
            lines = error or error_of(tail(job_log) if job_log else []) or [why]
            text = f"job {job.id} ended {job.state}: {why}; fix: {fix}"
            return StageStatus(stage=stage, state="failed", message=text, error_lines=tuple(lines), log=job_log or log)
        if error:
            text = error[0].partition("error: ")[2] or error[-1].strip()
            return StageStatus(stage=stage, state="failed", message=text, error_lines=tuple(error), log=log)
        if is_fresh and self.driver is not None:
            return self._running(stage, location=f"on {self.driver.host}")
        if is_fresh:
            text = "interrupted, and no driver is active: start again to continue"
            return self._inactive(stage, "stopped", text, log=log)
        return self._inactive(stage, "waiting", "for free resources" if self.driver is not None else "not started")

    def _job(self, stage: Stage) -> SchedulerJob | None:
        """Return the most informative job of a stage: queued before ended, later before earlier."""
        matching = [job for job in self.jobs if _key(job) == stage.key]
        # A job group is named `group_NAME_rule_rule`, without its datasets.
        bundled = (job for job in self.jobs if job.active and job.comment.startswith("group_"))
        groups = [job for job in bundled if f"_{stage.rule}_" in f"{job.comment}_"]
        if not matching and groups and not (self.base / stage.output).exists():
            matching = [job for job in groups if job.waits] if not (self.base / stage.log).exists() else groups
        return max(matching, key=lambda job: (job.active, job.runs, _number(job.id)), default=None)

    def _running(self, stage: Stage, *, location: str) -> StageStatus:
        log, training = self.base / stage.log, None
        if stage.kind == "run":
            store = self._store(stage.name)
            training = training_at(store.folder) if store is not None else None
            text, remaining = self._training_text(stage, training)
            text = joined(text, *_slow_ranks(store.folder) if store is not None else [])
        else:
            text, remaining = bar_of(tail(log)) or ("", None)
            if stage.rule == "sample":
                images = f"{self._images(stage)}/{self.graph.experiment.evaluations[stage.name].num_images} images"
                text = joined(images, f"{span(remaining)} left" if remaining is not None else "")
        text, log_file = joined(text, location), log if log.exists() else None
        return StageStatus(
            stage=stage, state="running", message=text, eta_seconds=remaining, training=training, log=log_file
        )

    def _training_text(self, stage: Stage, progress: TrainingProgress | None) -> tuple[str, float | None]:
        if progress is None:
            return "before its first step", None
        steps = self.graph.experiment.runs[stage.name].steps
        remaining, silent = (steps - progress.step) * progress.seconds_per_step, self.now - progress.time
        is_silent = silent > max(SILENT_SECONDS, SILENT_STEPS * progress.seconds_per_step)
        return joined(
            f"step {progress.step}/{steps}",
            pace(progress.seconds_per_step),
            f"{span(remaining)} left",
            "loss dropped" if progress.loss is None else f"loss {progress.loss:.4f}",
            f"{progress.images_per_second:.1f} images/s" if progress.images_per_second is not None else "",
            f"no step for {span(silent)}" if is_silent else "",
        ), remaining

    def _images(self, stage: Stage) -> int:
        shards = sorted((self.base / stage.output).parent.glob("shard-*.json"))
        shard_images = read_mapping(shards[0]).get("images") if shards else None
        count = shard_images * len(shards) if isinstance(shard_images, int) else 0
        return min(count, self.graph.experiment.evaluations[stage.name].num_images)

    def _inactive(self, stage: Stage, state: State, text: str, *, log: Path | None = None) -> StageStatus:
        """Return the state of a stage that does not run, with the saved step of a run."""
        saved = ""
        if stage.kind == "run":
            run = self.graph.experiment.runs[stage.name]
            step = max((step for step in self._steps(stage.name) if step <= stage.step), default=0)
            saved = f"step {step}/{run.steps} saved" if step > stage.step - run.segment_steps else ""
        return StageStatus(stage=stage, state=state, message=joined(saved, text), log=log)

    def _find_store(self, run: str) -> CheckpointStore | None:
        """Return the store folder of a run: by its inputs, or the last written one if it starts from a file."""
        experiment = self.graph.experiment
        settings, root = experiment.runs[run], self.base / experiment.store
        spec = stage_spec(experiment, "train", run)
        if settings.init_from_file is not None:
            specs = root.glob(f"{run}-{DIGEST}/spec.json")
            paths = [path for path in specs if read_mapping(path) | {"checksum": None} == spec | {"checksum": None}]
            newest = max(paths, key=lambda path: path.parent.stat().st_mtime, default=None)
            return CheckpointStore(newest.parent) if newest is not None else None
        identity: dict[str, Any] = {"spec": spec}
        for key, path in self.graph.train_input(run, settings.segment_steps).items():
            identity[key] = read_mapping(self.base / path).get("digest")
        folder = root / f"{run}-{digest(identity)}"
        return CheckpointStore(folder) if folder.is_dir() else None


def _slow_ranks(store: Path) -> list[str]:
    """Describe the ranks and links that are slow at present, from the store of a run."""
    content = read_mapping(store / "slow.json")
    now, findings = content.get("slow_now", []), content.get("findings", [])
    causes = {finding["rank"]: finding for finding in findings if not finding["is_pause"]}
    ranks = [
        f"slow: rank {rank} on {causes[rank]['node']}, {causes[rank]['ratio']:.2f} x ({causes[rank]['cause']})"
        for rank in now
        if rank in causes
    ]
    return ranks + [f"slow: link {link}" for link in content.get("slow_links", [])]


def describe_job(job: SchedulerJob) -> str:
    """Describe a job in the scheduler's queue: its nodes, or its reason to wait."""
    if job.runs:
        return f"job {job.id} on {job.nodes}" if job.nodes else f"job {job.id}"
    blocked = explain_blocked(job)
    text = f"job {job.id}: {job.reason or job.state.lower()}"
    return f"{text}: cannot start: {blocked[0]}; fix: {blocked[1]}" if blocked is not None else text


def _done(stage: Stage, output: Path, *, log: Path) -> StageStatus:
    """Return the state of a stage with output; an output that its readers reject is a failure, with their message."""
    seconds, numbers, end_time = None, dict[str, Any](), output.stat().st_mtime
    try:
        if stage.kind == "bench":
            load_document(require_regular_file(output).read_text(errors="replace"))
        elif output.suffix == ".json":
            manifest = Manifest.read(output)
            summaries.check(manifest.summary, stage=stage.manifest, path=output)
            seconds, numbers = manifest.wall_seconds, dict(manifest.summary)
            end_time = datetime.fromisoformat(manifest.created_at).timestamp()
    except (ValueError, OSError) as error:
        why = tuple(str(error if isinstance(error, UserError) else f"{output} is unusable: {error}").splitlines())
        return StageStatus(
            stage=stage, state="failed", message=why[0], error_lines=why, log=log if log.exists() else None
        )
    text = []
    if stage.kind == "run" and numbers.get("mean_loss_last_100") is not None:
        text += [f"loss {numbers['mean_loss_last_100']:.4f}"]
        text += [f"{numbers['images_per_second']:.1f} images/s"] if numbers.get("images_per_second") else []
    if stage.rule == "fid":
        text += [f"FID {numbers['fid']:.2f}"]
    seconds = numbers.get("training_seconds", seconds) if stage.kind == "run" else seconds
    return StageStatus(stage=stage, state="done", message=joined(*text), finished_at=end_time, seconds=seconds)


def _key(job: SchedulerJob) -> str:
    """Return `tiles_sentinel2` for `rule_tiles_wildcards_dataset=sentinel2`; wildcard names are optional."""
    rule, _, wildcards = job.comment.removeprefix("rule_").partition("_wildcards_")
    return "_".join([rule, *(part.rpartition("=")[2] for part in wildcards.split(",") if part)])


def _number(name: str) -> int:
    digits = name.partition("_")[0].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON mapping; empty if it is missing or unreadable."""
    try:
        content = parse_json(require_regular_file(path).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
