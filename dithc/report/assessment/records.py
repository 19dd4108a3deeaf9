"""Records of the assessment of a run: training, quality, concerns, next steps."""

from dataclasses import dataclass, field
from typing import Literal

Rating = Literal["good", "fair", "poor", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """A short answer, and its explanation with numbers; `rating` selects the color."""

    rating: Rating
    short: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ScaleMark:
    """A score on the scale from the best possible to an untrained network; `role` selects its style."""

    label: str
    role: Literal["floor", "codec", "now", "start"]
    value: float


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A next step, and its command, which may be empty."""

    text: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class RunAssessment:
    """Assessment of the last run of a chain.

    `marks` are ascending scores on one scale, empty if there are too few. `concerns` start with the most severe.
    """

    run: str
    dataset: str
    trained: Assessment
    quality: Assessment
    marks: list[ScaleMark] = field(default_factory=list)
    concerns: list[str] = field(default_factory=list)
    steps: list[NextStep] = field(default_factory=list)
