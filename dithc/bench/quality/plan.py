"""What is trained and judged: an experiment made of the runs that are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from dithc.config import Experiment
from dithc.log import problem

SHARES = (0.125, 0.25, 0.5, 1.0)
PARTS = 8  # steps are a multiple of it, so that every share of them is whole
CALIBRATION_STEPS, CALIBRATION_ROUNDS = 24, 2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison.

    Attributes:
        base: the experiment that has the contenders among its runs.
        baseline: the run that the others are compared with.
        candidates: those others; the baseline's own name is allowed, and is trained with other seeds.
        seeds: of the trainings; a contender that has its own seed keeps it.
        evaluation: the evaluation of `base` whose settings judge every contender that has none of its own.
    """

    base: Experiment
    baseline: str
    candidates: tuple[str, ...]
    seeds: tuple[int, ...]
    evaluation: str

    def __post_init__(self) -> None:
        for kind, names, section in (
            ("runs", self.contenders, self.base.runs),
            ("evaluations", (self.evaluation,), self.base.evaluations),
        ):
            for name in names:
                if name not in section:
                    raise problem(
                        f"{kind} of the comparison",
                        got=name,
                        expected=f"one of {', '.join(section) or 'none'}",
                        remedy=f"name one of these, or add it to the section `{kind}`",
                    )
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds or not self.candidates:
            raise problem(
                "seeds and candidates of the comparison",
                got=f"seeds {list(self.seeds)}, candidates {list(self.candidates)}",
                expected="at least one of each, and no seed twice",
                remedy="correct --seeds and --candidates",
            )

    @property
    def contenders(self) -> tuple[str, ...]:
        """The baseline, then the candidates."""
        return (self.baseline, *(name for name in self.candidates if name != self.baseline))

    @property
    def pairs(self) -> list[tuple[str, str, int, int]]:
        """Who is compared with whom: candidate, its label, the baseline's seed and its own."""
        after = max(self.seeds) + 1
        return [
            (name, "again" if name == self.baseline else name, seed, seed + after if name == self.baseline else seed)
            for name in self.candidates
            for seed in self.seeds
        ]

    @property
    def trainings(self) -> list[tuple[str, int]]:
        """Runs and seeds, each once, those that are compared beside each other."""
        found = dict.fromkeys(one for name, _, seed, own in self.pairs for one in ((self.baseline, seed), (name, own)))
        return list(found)

    def calibration(self) -> dict[str, Any]:
        """The experiment that measures a step of each contender: short trainings, in turns."""
        runs = {
            f"calibrate-{name}-{number}": self._run(name, seed=number, steps=CALIBRATION_STEPS)
            for number in range(CALIBRATION_ROUNDS)
            for name in self.contenders
        }
        return self._experiment(runs, {})

    def experiment(self, steps: Mapping[str, int]) -> dict[str, Any]:
        """The experiment that is judged.

        Args:
            steps: of each contender, a multiple of 8.
        """
        runs: dict[str, Any] = {}
        evaluations: dict[str, Any] = {}
        for name, seed in self.trainings:
            every, judged = steps[name] // PARTS, self._judged(name)
            kept = {"keep_every": every, "checkpoint_every": every, "keep_last": 1}
            runs[run_name(name, seed)] = self._run(name, seed=seed, steps=steps[name]) | kept
            for share in SHARES:
                at = int(steps[name] * share)
                evaluations[point_name(name, seed, at)] = judged | {"run": run_name(name, seed), "at": at}
        for name in self.contenders:
            first = run_name(name, next(seed for one, seed in self.trainings if one == name))
            judged = self._judged(name)
            evaluations[f"{name}-untrained"] = judged | {"run": first, "at": "untrained"}
            evaluations[f"{name}-codec"] = judged | {"run": first, "at": "codec"}
        return self._experiment(runs, evaluations)

    def _judged(self, name: str) -> dict[str, Any]:
        """How a contender's samples are made and scored: as an evaluation of its own says, else as that of all."""
        own = (one for one in self.base.evaluations.values() if one.run == name)
        return next(own, self.base.evaluations[self.evaluation]).model_dump(mode="json", exclude_unset=True)

    def _run(self, name: str, *, seed: int, steps: int) -> dict[str, Any]:
        given = self.base.runs[name].model_dump(mode="json", exclude_unset=True)
        return given | {"seed": seed, "steps": steps, "segment": None, "keep_every": None, "checkpoint_every": steps}

    def _experiment(self, runs: dict[str, Any], evaluations: dict[str, Any]) -> dict[str, Any]:
        content = self.base.model_dump(mode="json", exclude_unset=True)
        used = {run["dataset"] for run in runs.values()}
        extractors = {one["extractor"] for one in evaluations.values()}
        used |= {self.base.extractors[name].trained_on for name in extractors} - {None}
        codecs = {self.base.datasets[name].codec for name in used}
        used |= {getattr(self.base.codecs[name], "trained_on", None) for name in codecs} - {None}
        needed = {"datasets": used, "codecs": codecs, "extractors": extractors}
        for section, names in needed.items():
            content[section] = {name: value for name, value in content.get(section, {}).items() if name in names}
        title = f"Time to quality: {', '.join(self.contenders)}"
        name = f"{self.base.name}-quality"
        return {**content, "name": name, "title": title, "bench": {}, "runs": runs, "evaluations": evaluations}


def run_name(contender: str, seed: int) -> str:
    """The run of a contender with a seed."""
    return f"{contender}-s{seed}"


def point_name(contender: str, seed: int, step: int) -> str:
    """The evaluation of that run after a step."""
    return f"{run_name(contender, seed)}-{step}"


def calibrated_steps(seconds: Mapping[str, list[float]], *, budget_seconds: float) -> dict[str, int]:
    """Steps of each contender that fill a budget of wall time.

    Args:
        seconds: a step of each, in several trainings.
        budget_seconds: of a training.

    Raises:
        UserError: the budget is shorter than 8 steps.
    """
    steps = {name: int(budget_seconds / median(found)) // PARTS * PARTS for name, found in seconds.items()}
    short = {name: median(seconds[name]) for name, count in steps.items() if count < PARTS}
    if short:
        raise problem(
            "budget of the comparison",
            got=f"{budget_seconds / 60:g} minutes; a step takes {', '.join(f'{s:.2f} s ({n})' for n, s in short.items())}",
            expected=f"at least {PARTS} steps",
            remedy="raise --budget-minutes",
        )
    return steps
