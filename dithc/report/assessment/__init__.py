"""Assessment of each run on the first screen of the report.

Contents: for the last run of each chain, `assess_runs` returns whether it trained, the quality of its samples between an
untrained network and the best possible (the floor and the codec), concerns, and next steps with commands.

Invariants: pure functions of `ReportRecords`. Every statement follows from numbers on the page. Thresholds have names and
reasons. Scores are compared only for equal features, resize and real tiles.

Extending: a concern is a line in `warnings.py`, a next step a line in `next_steps.py`.
"""

from dithc.report.assessment.next_steps import next_steps
from dithc.report.assessment.quality import last_scored, quality, start_of
from dithc.report.assessment.records import Assessment, RunAssessment
from dithc.report.assessment.training_check import trained
from dithc.report.assessment.warnings import concerns
from dithc.report.records import ReportRecords

__all__ = ["Assessment", "RunAssessment", "assess_runs", "last_scored"]


def assess_runs(records: ReportRecords) -> list[RunAssessment]:
    """Return an assessment of each run at the end of a chain."""
    assessments = []
    for run in records.last_runs:
        item = last_scored(records, run.name)
        answer, marks = quality(records, run.name)
        assessments.append(
            RunAssessment(
                run=run.name,
                dataset=run.dataset,
                trained=trained(run, start_of(records, item) if item else None, item),
                quality=answer,
                marks=marks,
                concerns=concerns(records, run, item),
                steps=next_steps(records, run, item),
            )
        )
    return assessments
