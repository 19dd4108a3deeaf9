"""What is said first of a training: whether it trained, how good it is, what is off, what to do next."""

from dataclasses import dataclass, field
from typing import Literal

Mood = Literal["good", "fair", "poor", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer in a word or two, and its explanation with numbers; `short` conveys `mood` too, which is shown by color."""

    mood: Mood
    short: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A score on the scale from the best possible to an untrained network; `role` selects its style."""

    label: str
    role: Literal["floor", "codec", "now", "start"]
    value: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """A next step, and its command if there is one."""

    text: str
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on the last training of a chain.

    `marks` are ascending scores on one scale, empty if there are too few; `concerns` start with the gravest.
    """

    run: str
    dataset: str
    trained: Answer
    quality: Answer
    marks: list[Mark] = field(default_factory=list)
    concerns: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
