"""The verdict: what the first screen of the report says of each training, in plain words.

What: `judge` answers, for the last training of each chain, whether it learnt, how good its samples are between an untrained
network and the best that is possible (the floor and the codec), what is off, and what to do next with lines that can be pasted.
`verdict` tells the course of a data set's scores in sentences.
Why: who opens a report asks these four questions; numbers and pictures are there to check the answers.
Invariants: pure functions of `Facts`; every word follows from numbers that stand on the page; thresholds have names and reasons;
scores are held against each other only where features, resize and real tiles are the same.
How to change it: a concern is a line in `concerns.py`, a fix one in `next_steps.py`.
"""

from dithc.report.facts import Facts
from dithc.report.verdict.concerns import concerns
from dithc.report.verdict.next_steps import next_steps
from dithc.report.verdict.quality import last_scored, quality
from dithc.report.verdict.said import Answer, Judgement
from dithc.report.verdict.trained import trained

__all__ = ["Answer", "Judgement", "judge", "last_scored"]


def judge(facts: Facts) -> list[Judgement]:
    """Return a judgement for each training at the end of a chain."""
    found = []
    for run in facts.last_runs:
        item = last_scored(facts, run.name)
        answer, marks = quality(facts, run.name)
        found.append(
            Judgement(
                run=run.name,
                dataset=run.dataset,
                trained=trained(run, item.gain if item else None),
                quality=answer,
                marks=marks,
                concerns=concerns(facts, run, item),
                steps=next_steps(facts, run, item),
            )
        )
    return found
