"""Next steps with commands, the most useful step first."""

import shlex
from collections.abc import Iterator

from dithc.report.assessment.quality import codec_of, floor_of
from dithc.report.assessment.records import NextStep
from dithc.report.assessment.restorations import relative_errors
from dithc.report.assessment.training_check import held_out
from dithc.report.assessment.warnings import LOSSY
from dithc.report.records import SMALL, EvaluationRecord, ReportRecords, RunRecord

MAX_STEPS = 3
PROFILE = "profiles/local"


def next_steps(records: ReportRecords, run: RunRecord, item: EvaluationRecord | None) -> list[NextStep]:
    """Return at most `MAX_STEPS` next steps for a run and its primary evaluation."""
    return [*_run_steps(records, run), *_score_steps(records, run, item), *_file_steps(records, run, item)][:MAX_STEPS]


def _run_steps(records: ReportRecords, run: RunRecord) -> Iterator[NextStep]:
    trend, errors = held_out(run), relative_errors(records, run.name)
    is_weak = bool(errors) and not errors[0].is_better
    resume = "; it resumes from its last checkpoint." if run.settings.get("lr_schedule") == "constant" else "."
    if run.step is None or run.step < run.steps_planned:
        yield NextStep(text="Finish the run; it resumes from its last checkpoint.", command=_rerun(records))
    elif is_weak or (trend and trend.is_falling):
        longer = f"runs={{{run.name}: {{steps: {2 * run.steps_planned}}}}}"
        reason = (
            f"restored pixels are no better than {errors[0].baseline}"
            if is_weak
            else "the held-out loss was still falling"
        )
        yield NextStep(text=f"Train longer, because {reason}{resume}", command=_rerun(records, longer))
    if trend and trend.is_rising:
        is_augmented = run.settings.get("augment") == "dihedral"
        changes = f"runs={{{run.name}: {{augment: dihedral}}}}", f"datasets={{{run.dataset}: {{views: 8}}}}"
        text = f"Stop at about step {trend.least_step:,}, or add tiles."
        if not is_augmented:
            text += " Or use `augment: dihedral`, and `conditions: [view]` if the tiles have a preferred orientation."
        yield NextStep(text=text, command="" if is_augmented else _rerun(records, *changes))


def _score_steps(records: ReportRecords, run: RunRecord, item: EvaluationRecord | None) -> Iterator[NextStep]:
    if item is None or item.score is None:
        restorations = [one for one in records.restorations if one.prior == run.name]
        if not restorations or any(one.run == run.name for one in records.evaluations):
            yield NextStep(text="Generate and score samples.", command=_rerun(records))
        elif not any(one.scores for one in restorations):
            yield NextStep(text="Measure the error: add a copy of the restoration with `hide`.")
        return
    codec, floor = codec_of(records, item), floor_of(item.score)
    dataset = records.dataset(run.dataset)
    if codec is None:
        split = {name: item.settings[name] for name in ("real_split", "num_real_images") if item.settings.get(name)}
        extractor = item.settings.get("extractor", "")
        settings = {"run": run.name, "checkpoint": "codec", "num_images": item.score.n_real, "extractor": extractor}
        entry = f"{{{', '.join(f'{name}: {value}' for name, value in (settings | split).items())}}}"
        yield NextStep(
            text="Measure the limit of the codec: score real tiles through the codec.",
            command=_rerun(records, f"evaluations={{{run.dataset}-codec: {entry}}}"),
        )
    elif floor and codec.score and codec.score.fid > LOSSY * floor[0] and dataset.codec.steps:
        longer = f"codecs={{{dataset.codec.name}: {{steps: {2 * dataset.codec.steps}}}}}"
        yield NextStep(
            text="Train a better codec, because it limits the samples; all later stages are rebuilt.",
            command=_rerun(records, longer),
        )
    if item.score.n < SMALL and (dataset.tiles or 0) > item.score.n_generated:
        override = f"evaluations={{{item.name}: {{num_images: {min(dataset.tiles or 0, 10_000)}}}}}"
        yield NextStep(text="Score more images for smaller intervals.", command=_rerun(records, override))


def _file_steps(records: ReportRecords, run: RunRecord, item: EvaluationRecord | None) -> Iterator[NextStep]:
    if item and item.files:
        samples = shlex.quote(str(item.files.samples))
        yield NextStep(
            text="Export the images in the units of the dataset, for other programs.",
            command=f"dithc export --samples {samples} --select 0:16 --out {shlex.quote(f'{run.name}-tiff')}",
        )
    if records.config:
        yield NextStep(
            text="Verify all files of this page.", command=f"dithc verify {shlex.quote(str(records.config.parent))}"
        )


def _rerun(records: ReportRecords, *changes: str) -> str:
    """Return the command that reruns the experiment with changes; empty without a known configuration."""
    if records.config is None:
        return ""
    line = f"dithc run --profile {PROFILE} --configfile {shlex.quote(str(records.config))}"
    return f"{line} -- --config {' '.join(map(shlex.quote, changes))}" if changes else line
