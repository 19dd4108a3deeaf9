"""States of stages, from fabricated folders and jobs."""

import json
import os
import time
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.config import stage_spec
from dithc.core.artifacts import Lease, Manifest, digest
from dithc.core.integrity import dump_checksummed, load_checksummed
from dithc.core.logging import UserError
from dithc.engine.scheduler import SchedulerJob
from dithc.workflow import EventReporter, ExperimentMonitor, ExperimentStatus, OutputFilter, format_status
from dithc.workflow.monitor.log_tail import bar_of, error_of, training_at
from dithc.workflow.monitor.stage_status import StageStatus
from dithc.workflow.preflight.results import find_damaged
from tests.workflow.conftest import finish, write

ERROR = """18:01:39 scenes: 1/1 scene (100 %), 8.9 scene/s, 0:00 elapsed, 0:00 remaining, rejected 1
18:01:39 ingest: error: 1 of 1 scenes cannot be used
  got:      nothing
  expected: at least one
  fix:      copy the file again
"""


def train(folder: Path, *, steps: int, loss: float | None = 0.5, ago: float = 0.0, saved: int | None = None) -> Path:
    """Write a store of run `pretrain` with this number of steps, under the name that follows from its inputs."""
    latents = json.loads((folder / "latents/landscape/manifest.json").read_text())["digest"]
    spec = stage_spec(ExperimentMonitor(folder).graph.experiment, "train", "pretrain")
    store = folder.parent.parent / "store" / f"pretrain-{digest({'spec': spec, 'latents': latents})}"
    values = {"step_seconds": 2.0, "images_per_second": 4.0, "padding": "x" * 900}
    rows = [{"step": step, "time": time.time() - ago, "loss": loss, **values} for step in range(1, steps + 1)]
    write(store / "metrics/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9')
    if saved is not None:
        write(store / f"step_{saved:07d}" / "checkpoint.json", "{}")
    return store


def status_of(status: ExperimentStatus, title: str) -> StageStatus:
    return next(one for one in status.stages if one.stage.title == title)


def test_unstarted_stages_wait_and_name_the_preceding_stage(folder: Path) -> None:
    status = ExperimentMonitor(folder).poll()
    assert {one.state for one in status.stages} == {"waiting"}
    assert status_of(status, "synthesize landscape").message == "not started"
    assert status_of(status, "tiles landscape").message == "for ingest landscape"
    assert status_of(status, "pretrain pretrain to step 20").message == ("for latents landscape")
    assert "no active driver" in format_status(status)[-1]


TILES, PRETRAIN = "rule_tiles_wildcards_landscape", "rule_pretrain_wildcards_run=pretrain,step=0000020"
BLOCKED = "job 5: PartitionTimeLimit: cannot start: requests more time than the partition allows; fix: lower `machine.max_wall"


@pytest.mark.parametrize(
    ("job", "state", "text"),
    [
        (SchedulerJob(id="5", state="PENDING", reason="PartitionTimeLimit", comment=TILES), "queued", BLOCKED),
        (
            SchedulerJob(id="9", state="OUT_OF_MEMORY", status=0, comment=TILES),
            "failed",
            "job 9 ended OUT_OF_MEMORY: it used more mem",
        ),
        (
            SchedulerJob(id="9", state="FAILED", status=75, comment=TILES),
            "waiting",
            "stopped after a checkpoint, to be rerun",
        ),
        (SchedulerJob(id="9", state="RUNNING", nodes="n1", comment=TILES), "running", "job 9 on n1"),
    ],
)
def test_job_state_determines_the_stage_state(folder: Path, job: SchedulerJob, state: str, text: str) -> None:
    finish(folder, "scenes/landscape")
    earlier = SchedulerJob(id="4", state="FAILED", status=1, comment=TILES)
    one = status_of(ExperimentMonitor(folder).poll([job, earlier]), "tiles landscape")
    assert one.state == state
    assert one.message.startswith(text)


def test_results_of_other_settings_or_earlier_inputs_are_outdated(folder: Path) -> None:
    finish(folder, "scenes/landscape")
    scenes, tiles = (folder / stage / "landscape/manifest.json" for stage in ("scenes", "tiles"))
    spec = stage_spec(ExperimentMonitor(folder).graph.experiment, "tiles", "landscape")
    current = Manifest.read(scenes).digest
    for own, used, state, text in (
        (spec, current, "done", ""),
        (spec | {"tiles": {"size": 16}}, current, "waiting", "outdated: made with other settings (tiles)"),
        (spec, "0" * 12, "waiting", f"outdated: made from an earlier {scenes}"),
    ):
        Manifest(stage="tiles", name="landscape", spec=own, inputs={str(scenes): used}).write(tiles)
        one = status_of(ExperimentMonitor(folder).poll(), "tiles landscape")
        assert (one.state, one.message) == (state, text)
    Manifest(
        stage="latents",
        name="landscape",
        spec=stage_spec(ExperimentMonitor(folder).graph.experiment, "latents", "landscape"),
    ).write(folder / "latents/landscape/manifest.json")
    one = status_of(ExperimentMonitor(folder).poll(), "latents landscape")
    assert (one.state, one.message) == ("waiting", "outdated: tiles landscape is outdated")
    Manifest(stage="tiles", name="landscape", spec={}).write(tiles)  # a setting is missing
    assert status_of(ExperimentMonitor(folder).poll(), "tiles landscape").state == "waiting"


def test_stages_with_invalid_output_are_failed(folder: Path) -> None:
    numbers = {"step": 20, "seconds_per_step_median": None, "mean_loss_last_100": []}
    path = folder / "runs/pretrain/step_0000020.json"
    Manifest(stage="train", name="pretrain", spec={}, summary=numbers).write(path)
    content = load_checksummed((folder / "config.json").read_text())
    content["bench"]["model"] = "DiT-S/2"
    (folder / "config.json").write_text(dump_checksummed(content))
    write(folder / "bench/step.json")
    status = ExperimentMonitor(folder).poll()
    assert "of stage 'train'" in status_of(status, "pretrain pretrain to step 20").message
    assert {one.stage.kind for one in status.stages if one.state == "failed"} == {"run", "bench"}
    assert main(["status", str(folder)]) == 1


@pytest.mark.parametrize("content", ["", "{}", "\xff", None])
def test_stage_with_unreadable_manifest_fails_with_the_planning_message(folder: Path, content: str) -> None:
    """None stands for a manifest without its second document."""
    finish(folder, "scenes/landscape")
    path = folder / "scenes/landscape/manifest.json"
    if content is None:
        Manifest.provenance_path(path).unlink()
    else:
        path.write_text(content, encoding="latin-1")
    one = status_of(ExperimentMonitor(folder).poll(), "ingest landscape")
    assert one.state == "failed"
    assert [one.message] == find_damaged([str(path)])[str(path)]
    assert main(["status", str(folder)]) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", b"[1"])
def test_changed_configuration_is_rejected(folder: Path, content: bytes) -> None:
    """The error also covers changed bytes in the middle."""
    sealed = (folder / "config.json").read_bytes()
    for changed in (content, sealed[:99] + content + sealed[100:]):
        (folder / "config.json").write_bytes(changed)
        with pytest.raises(UserError, match=r"was changed after it was written\n  got: .*checksum"):
            ExperimentMonitor(folder)


def test_training_status_reports_progress_rate_time_left_and_saved_step(folder: Path) -> None:
    finish(folder, "latents/landscape")
    store = train(folder, steps=12, saved=10)
    job = SchedulerJob(id="17", state="RUNNING", nodes="node3", comment="rule_pretrain_wildcards_pretrain_0000020")
    status = ExperimentMonitor(folder).poll([job])
    one = status_of(status, "pretrain pretrain to step 20")
    assert (one.state, one.eta_seconds) == ("running", (40 - 12) * 2.0)
    assert one.message == "step 12/40, 2 s per step, 0:56 left, loss 0.5000, 4.0 images/s, job 17 on node3"
    run = next(stage for stage in json.loads(json.dumps(status.as_json()))["stages"] if stage["rule"] == "pretrain")
    assert (run["state"], run["training"]["step"]) == ("running", 12)
    queued = status_of(
        ExperimentMonitor(folder).poll([SchedulerJob(id="17", state="PENDING", reason="Priority", comment=PRETRAIN)]),
        one.stage.title,
    )
    assert (queued.state, queued.message) == ("queued", "step 10/40 saved, job 17: Priority")
    train(folder, steps=500, loss=None, ago=600)  # only the end of the metrics is read
    silent = status_of(ExperimentMonitor(folder).poll([job]), one.stage.title).message
    assert "step 500/40" in silent
    assert "no step for 10:0" in silent
    for text in ("", "{}\n", "[1]\n", "null\n", '{"step": 1'):
        write(store / "metrics/metrics.jsonl", text)
        assert training_at(store) is None


def test_status_of_a_run_names_its_slow_ranks_also_after_its_end(folder: Path) -> None:
    finish(folder, "latents/landscape")
    store = train(folder, steps=20, saved=20)
    finding = {"rank": 1, "node": "n7", "ratio": 1.9, "cause": "quota", "is_pause": False}
    write(store / "slow.json", json.dumps({"slow_now": [1], "findings": [finding]}))
    job = SchedulerJob(id="17", state="RUNNING", nodes="n7", comment="rule_pretrain_wildcards_pretrain_0000020")
    running = status_of(ExperimentMonitor(folder).poll([job]), "pretrain pretrain to step 20")
    latents = folder / "latents/landscape/manifest.json"
    done = Manifest(
        stage="train",
        name="pretrain",
        spec=stage_spec(ExperimentMonitor(folder).graph.experiment, "train", "pretrain"),
        inputs={str(latents): Manifest.read(latents).digest},
        summary={"step": 20, "seconds_per_step_median": 2.0},
    )
    done.write(folder / "runs/pretrain/step_0000020.json")
    ended = status_of(ExperimentMonitor(folder).poll(), "pretrain pretrain to step 20")
    assert (running.state, ended.state) == ("running", "done")
    assert all("slow: rank 1 on n7, 1.90 x (quota)" in one.message for one in (running, ended))


def test_group_jobs_match_stages_and_unmatched_jobs_are_listed(folder: Path) -> None:
    jobs = [
        SchedulerJob(id="5", state="PENDING", reason="Resources", comment="group_prepare_stage_tiles"),
        SchedulerJob(id="6", state="PENDING", reason="Priority", comment="rule_strategies"),
    ]
    status = ExperimentMonitor(folder).poll(jobs)
    assert status_of(status, "tiles landscape").state == "queued"
    assert status_of(status, "latents landscape").state == "waiting"
    assert status.unmatched_jobs == ["strategies: job 6: Priority"]


def test_failed_stage_shows_error_lines_and_log_path(folder: Path) -> None:
    finish(folder, "inputs/landscape")
    write(folder / "logs/ingest/landscape.log", ERROR)
    status = ExperimentMonitor(folder).poll()
    one = status_of(status, "ingest landscape")
    assert (one.state, one.message) == ("failed", "1 of 1 scenes cannot be used")
    assert len(one.error_lines) == 4
    assert "landscape.log" in status.failures()[0]


def test_stage_is_running_only_with_an_active_driver_and_recent_log(folder: Path) -> None:
    finish(folder, "scenes/landscape")
    log = write(
        folder / "logs/tiles/landscape.log",
        "18:01:39 tiles: 3/8 scene (37 %), 1 scene/s, 0:03 elapsed, 0:05 remaining\n",
    )
    assert status_of(ExperimentMonitor(folder).poll(), "tiles landscape").state == "stopped"
    with Lease(folder):
        one = status_of(ExperimentMonitor(folder).poll(), "tiles landscape")
        assert (one.state, one.eta_seconds) == ("running", 5.0)
        assert one.message.startswith("3/8 scene, 1 scene/s, 0:05 left")
        os.utime(log, (time.time() - 3600, time.time() - 3600))
        assert status_of(ExperimentMonitor(folder).poll(), "tiles landscape").message == "for free resources"


def test_lines_fit_width_and_height(folder: Path) -> None:
    finish(folder, "scenes/landscape")
    write(folder / "logs/tiles/landscape.log", ERROR)
    status = ExperimentMonitor(folder).poll()
    lines = format_status(status, width=60, height=5)
    assert len(lines) == 5
    assert max(map(len, lines)) <= 60
    assert any("failed" in line for line in lines)
    coloured = format_status(status, width=60, height=5, color=True)
    assert any("\x1b[31mfailed\x1b[0m" in line for line in coloured)
    assert "\x1b" not in "".join(format_status(status))


def test_outdated_report_is_hidden_with_an_active_driver(folder: Path) -> None:
    progress = ExperimentMonitor(folder)
    numbers = {"step": 20, "seconds_per_step_median": 1.0, "images": 1, "rendering_digest": "", "fid": 1.0}
    numbers |= {
        "extractor": "x",
        "sha256": "x",
        "resize": "x",
        "comparable_to_published": True,
        "n_real": 1,
        "n_generated": 1,
    }
    outputs = [one.stage.output for one in progress.poll().stages]
    finish(folder.parent.parent, *(path for path in outputs if path.endswith(".json")), **numbers)
    report = write(folder / "report.html")
    assert progress.poll().report == report
    os.utime(report, (time.time() - 60, time.time() - 60))
    with Lease(folder):
        status = progress.poll()
        assert (status.report, status.count("done")) == (None, 46)
        assert status_of(status, "report").message.startswith("outdated: older than ")
        report.write_text("rebuilt")
        os.utime(report, (time.time() + 1, time.time() + 1))
        assert progress.poll().report == report


def test_events_are_reported_once_and_running_stages_with_backoff(folder: Path) -> None:
    finish(folder, "inputs/landscape")
    narrator, quiet = EventReporter(beats=True), EventReporter(beats=False)

    def events(now: float) -> tuple[int, list[str]]:
        status = ExperimentMonitor(folder).poll()
        return len(quiet.events(status, now=now)), narrator.events(status, now=now)

    queued = ExperimentMonitor(folder).poll([SchedulerJob(id="18", state="PENDING", comment=TILES)])
    assert EventReporter(beats=True).events(queued, now=0) == []
    with Lease(folder):
        assert events(0) == (0, [])
        log = write(folder / "logs/ingest/landscape.log", "begun\n")
        assert events(1) == (0, [])
        status = ExperimentMonitor(folder).poll()
        reported = [
            now for now in range(2, 7300, 10) if "landscape: running" in "".join(narrator.events(status, now=now))
        ]
        assert [round((now - 1) / 60) for now in reported] == [1, 3, 7, 15, 31, 61, 91, 121]
        log.write_text(ERROR)
        number, lines = events(7301)
        assert number == 1
        assert "failed: 1 of 1 scenes cannot be used" in lines[0]
        finish(folder, "scenes/landscape", "inputs/gaofen2")
        assert [line.split("]")[0][-6:] for line in events(7302)[1]] == ["[ 2/47", "[ 3/47"]
        assert events(7303) == (0, [])
        status = ExperimentMonitor(folder).poll()
        latest = max(one.finished_at for one in status.stages if one.finished_at is not None)
        assert EventReporter(beats=False).events(status, since=latest + 1) == [], (
            "an earlier driver has done these stages"
        )
        assert len(EventReporter(beats=False).events(status, since=latest - 60)) == 3


def test_output_filter_shows_driver_messages_and_new_warnings() -> None:
    text = """Building DAG of jobs...
12:00:00 workflow: warning: train a: about 900 minutes of work
12:00:01 tiles: 3 tiles
12:00:02 evaluate: warning: n = 5
12:00:02 evaluate: warning: n = 16
    jobid: 3
12:00:03 ingest: error: not this one
  got:      nothing
12:00:04 workflow: error: job 7 ended
  why: memory
rule tiles:
  fix: not of the block"""
    output = OutputFilter()
    shown = output.of(text.splitlines())
    assert [line.split(" ", 1)[-1] for line in shown] == [
        "workflow: warning: train a: about 900 minutes of work",
        "evaluate: warning: n = 5",
        "workflow: error: job 7 ended",
        " why: memory",
    ]
    assert output.has_error


def test_last_progress_and_error_are_parsed_from_logs() -> None:
    assert bar_of(["12:00:00 codec: 2/4 step (50 %), 1 step/s, 0:02 elapsed, ? remaining, loss 0.1"]) == (
        "2/4 step, 1 step/s, ? left, loss 0.1",
        None,
    )
    assert bar_of(["nothing"]) is None
    assert (
        error_of(["12:00:00 a: b", "Traceback (most recent call last):", "  File x", "KeyError: 3"])[-1]
        == "KeyError: 3"
    )
    assert error_of(["12:00:00 a: no error: here"]) == []
    whole = ["12:00:00 train: error: no latents", "  got:      none", "  expected: some", "  fix:      encode"]
    assert error_of([*whole, "12:00:00 train: error: rank 0: the same error"]) == whole
    assert error_of(["Traceback (most recent call last):", "  File x", "KeyboardInterrupt"]) == []
