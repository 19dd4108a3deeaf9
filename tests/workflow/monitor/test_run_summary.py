"""Final summary of `dithc run`, from fabricated folders."""

from pathlib import Path
from typing import Any

import pytest

from dithc.config import stage_spec
from dithc.core.artifacts import Manifest
from dithc.workflow import ExperimentMonitor, RunSummary, SnakemakeProcess
from dithc.workflow.monitor.text_width import folded, shortened
from dithc.workflow.monitor.warnings import WarningCollector
from tests.workflow.conftest import finish, write

SCORE: dict[str, Any] = {
    "fid": 3.98,
    "kid": 0.012,
    "kid_interval": [0.01, 0.014],
    "floor": 0.5,
    "n_real": 300,
    "n_generated": 128,
    "extractor": "classifier.safetensors",
    "sha256": "23f4a169d5c4" * 5 + "0000",
    "resize": "none",
    "comparable_to_published": False,
}
INTERRUPTED = """RuleException:
CalledProcessError in file "a.smk", line 22:
Command 'set -euo pipefail; dithc a' returned non-zero exit status {status}.
Error in rule a:
    log: results/demo/logs/ingest/landscape.log (check log file(s) for error details)
"""


def summary(folder: Path, *, width: int | None = None) -> list[str]:
    progress = ExperimentMonitor(folder)
    closing = RunSummary(progress, progress.poll(), width=width)
    return closing.summary(warned=WarningCollector(), since=0.0, seconds=492.0)


def test_scores_are_grouped_by_dataset_and_extractor(folder: Path) -> None:
    for name in ("sentinel2-after", "gaofen2-after"):
        path = folder / "fid" / name / "manifest.json"
        spec = stage_spec(ExperimentMonitor(folder).graph.experiment, "fid", name)
        Manifest(stage="fid", name=name, spec=spec, summary=SCORE).write(path)
    lines = summary(folder)
    head = "scores of sentinel2: extractor landscape-classifier (23f4a169d5c4, comparable only with scores of this extractor)"
    assert lines[0] == f"{head}, rendering B04 B03 B02, 0 to 0.3"
    score = "FID 3.98, floor 0.5, KID 0.012 [0.01, 0.014], n 128 generated, 300 real"
    assert lines[1] == f"  sentinel2-after  {score}"
    assert "rendering R G B, 89/180/301 to 580/600/705" in lines[2]


def test_training_time_of_several_segments_is_counted_once(folder: Path) -> None:
    numbers = {"seconds_per_step_median": 1.0, "checkpoint_folder": "store/pretrain-1"}
    spec = stage_spec(ExperimentMonitor(folder).graph.experiment, "train", "pretrain")
    for step, seconds in ((20, 30.0), (40, 66.0)):
        segment = {**numbers, "step": step, "training_seconds": seconds}
        Manifest(stage="train", name="pretrain", spec=spec, summary=segment).write(
            folder / f"runs/pretrain/step_{step:07d}.json"
        )
    finish(folder, "inputs/landscape", "inputs/sentinel2")  # 12 seconds each
    lines = summary(folder)
    assert "time of all finished stages, 1:30 without startup: train 1:06 (73%), synthesize 0:24 (27%)" in lines
    assert "checkpoints: store/pretrain-1" in lines
    assert lines[-1] == "demo: 4 of 47 stages done; duration 8:12"


def test_warnings_are_counted_by_type_with_the_first_stage(folder: Path) -> None:
    for name, count in (("sentinel2", 2), ("gaofen2", 1)):
        text = "".join(
            f"12:00:0{number} data: warning: {number} of 9 tiles of a1b2 are grey\n" for number in range(count)
        )
        write(folder / f"logs/tiles/{name}.log", f"12:00:00 data: 9 tiles\n{text}r3 | 12:00:00 data: warning: no gpu\n")
    lines = summary(folder)
    begin = lines.index("warnings: 5, of 2 kinds")
    assert lines[begin + 1 : begin + 3] == [
        "  3 times, first in tiles sentinel2: data: 0 of 9 tiles of a1b2 are grey",
        "  2 times, first in tiles sentinel2: data: no gpu",
    ]


@pytest.mark.parametrize(("status", "ending"), [(137, "SIGKILL"), (143, "SIGTERM"), (3, "status 3")])
def test_stage_ended_without_a_message_is_reported_with_signal_or_status(
    folder: Path, status: int, ending: str
) -> None:
    finish(folder, "inputs/landscape")
    write(folder / "logs/ingest/landscape.log", "12:00:00 ingest: 1 scene\n")
    engine = SnakemakeProcess([], log=write(folder / "logs/snakemake.log", INTERRUPTED.format(status=status)))
    progress = ExperimentMonitor(folder)
    assert RunSummary(progress, progress.poll()).failure({}, already_reported=False) == []
    lines = RunSummary(progress, progress.poll()).failure(engine.ended(), already_reported=False)
    assert lines[0].startswith(f"ingest landscape ended without an error message ({ending}); log:")
    assert "  | 12:00:00 ingest: 1 scene" in lines
    assert any(line.startswith("  fix: if memory ran out") for line in lines) == (ending == "SIGKILL")
    assert lines[-1].startswith("45 stages were not started, 1 are done")


def test_lines_are_folded_at_the_width_without_splitting_paths() -> None:
    path = "/" + "long/" * 50
    lines = folded([f"  what it is: {'word ' * 60}{path} end", "short"], width=100)
    assert path in [line.strip() for line in lines]
    assert all(len(line) <= 100 for line in lines if path not in line)
    assert " ".join(" ".join(lines).split()) == f"what it is: {'word ' * 60}{path} end short"


@pytest.mark.parametrize("width", [9, 20])
def test_shortened_names_preserve_first_and_last_characters(width: int) -> None:
    name = "features sentinel2.all.classifier"
    found = shortened(name, width)
    assert len(found) == width
    assert (found[0], found[-1]) == (name[0], name[-1])
    assert shortened(name, len(name)) == name
