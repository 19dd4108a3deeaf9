"""What is trained and judged: an experiment made of the runs that are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from dithc.config import Experiment, training
from dithc.log import problem
from dithc.runs import digest

SHARES = (0.125, 0.25, 0.5, 1.0)
PARTS = 8  # steps are a multiple of it, so that every share of them is whole
CALIBRATION_ROUNDS = 2
OF_SCHEDULE = ("warmup_steps", "lr_schedule", "decay_share")
OF_NO_TIME = (*OF_SCHEDULE, "lr", "betas", "weight_decay", "steps", "seed")  # a step takes as long whatever they are
SAME_SAMPLES = ("images", "seed", "real_split", "real_images", "extractor")
SAME_TILES = ("source", "tiles", "split", "rendering")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison of trainings.

    Attributes:
        base: experiment that contains the contenders as runs.
        candidates: runs to compare with `baseline`; the baseline's own name is allowed and trains with other seeds.
        evaluation: evaluation of `base` that defines sampling and scoring. A contender that needs another sampler has its own,
            with the same images, real tiles and extractor.
        environment: digest of the environment of the timed steps.
    """

    base: Experiment
    baseline: str
    candidates: tuple[str, ...]
    seeds: tuple[int, ...]
    evaluation: str
    environment: str = ""

    calibration_steps: ClassVar[int] = 24

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
                        fix=f"name one of these, or add it to the section `{kind}`",
                    )
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds or not self.candidates:
            raise problem(
                "seeds and candidates of the comparison",
                got=f"seeds {list(self.seeds)}, candidates {list(self.candidates)}",
                expected="at least one of each, and no seed twice",
                fix="correct --seeds and --candidates",
            )
        for name in self.contenders:
            self._check(name)

    def _check(self, name: str) -> None:
        """Check that contenders and baseline have the same evaluation."""
        run, own, baseline = self.base.runs[name], self._judged(name), self._judged(self.baseline)
        data, theirs = (self.base.datasets[self.base.runs[one].dataset] for one in (name, self.baseline))
        differing = [f"evaluation's {key}" for key in SAME_SAMPLES if getattr(own, key) != getattr(baseline, key)]
        differing += [f"data set's {key}" for key in SAME_TILES if getattr(data, key) != getattr(theirs, key)]
        if run.init is not None:
            differing.append(f"start: it goes on from run {run.init}, whose time would not count")
        if differing:
            raise problem(
                f"contender {name}",
                got=f"another {', another '.join(differing)} than {self.baseline}",
                expected="the same tiles, and as many samples against the same real ones",
                fix="correct the experiment file, or compare other runs",
            )

    @property
    def contenders(self) -> tuple[str, ...]:
        """Return the baseline, then the candidates."""
        return (self.baseline, *(name for name in self.candidates if name != self.baseline))

    @property
    def pairs(self) -> list[tuple[str, str, int, int]]:
        """Return compared pairs: candidate, label, the baseline's seed and its own."""
        after = max(self.seeds) + 1
        return [
            (name, "again" if name == self.baseline else name, seed, seed + after if name == self.baseline else seed)
            for name in self.candidates
            for seed in self.seeds
        ]

    @property
    def trainings(self) -> list[tuple[str, int]]:
        """Return distinct runs and seeds, with compared ones adjacent."""
        found = dict.fromkeys(one for name, _, seed, own in self.pairs for one in ((self.baseline, seed), (name, own)))
        return list(found)

    def identity(self, name: str) -> str:
        """Return the digest of every fact that decides a contender's seconds per step."""
        run = self.base.runs[name]
        data = self.base.datasets[run.dataset]
        settings = (run, data, self.base.codecs[data.codec], self.base.machine)
        content = [one.model_dump(mode="json", exclude_defaults=True) for one in settings]
        content[0] = {key: value for key, value in content[0].items() if key not in OF_NO_TIME}
        return digest([*content, self.environment])

    def calibrations(self, name: str, beside: Sequence[str]) -> list[str]:
        """Return the short trainings that time a contender in turns with `beside`; identical steps share one."""
        group = digest(sorted({self.identity(one) for one in beside}))
        return [f"calibrate-{self.identity(name)}-{group}-{number}" for number in range(CALIBRATION_ROUNDS)]

    def calibration(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the experiment of short trainings in turns that measure step times."""
        runs: dict[str, Any] = {}
        for number in range(CALIBRATION_ROUNDS):
            for name in names:
                run = self._run(name, seed=number, steps=self.calibration_steps)
                # A schedule costs nothing, and may need more steps than these.
                runs[self.calibrations(name, names)[number]] = {key: run[key] for key in run if key not in OF_SCHEDULE}
        return self._experiment(runs, {})

    def experiment(self, steps: Mapping[str, int]) -> dict[str, Any]:
        """Return the experiment to judge, with `steps` of each contender, multiples of 8."""
        runs: dict[str, Any] = {}
        evaluations: dict[str, Any] = {}
        for name, seed in self.trainings:
            every, run = steps[name] // PARTS, run_name(name, seed, steps[name])
            kept = {"keep_every": every, "checkpoint_every": every, "keep_last": 1}
            runs[run] = self._run(name, seed=seed, steps=steps[name]) | kept
            judged = self._judged(name).model_dump(mode="json", exclude_unset=True) | {"run": run}
            for at in points(steps[name]):
                evaluations[point_name(run, at)] = judged | {"at": at}
            for bound, of in ((self.untrained, "untrained"), (self.codec_alone(name), "codec")):
                evaluations.setdefault(bound, judged | {"at": of, "ema": None})
        return self._experiment(runs, evaluations)

    @property
    def untrained(self) -> str:
        """Return the evaluation of the baseline's fresh weights."""
        return f"{self.baseline}-untrained"

    def codec_alone(self, name: str) -> str:
        """Return the evaluation of a contender's codec, which several may share."""
        return f"codec-{self.base.datasets[self.base.runs[name].dataset].codec}"

    def _judged(self, name: str) -> training.Evaluation:
        """Return how samples of a contender are made and scored."""
        chosen = self.base.evaluations[self.evaluation]
        own = (one for one in self.base.evaluations.values() if one.run == name)
        return chosen if chosen.run == name else next(own, chosen)

    def _run(self, name: str, *, seed: int, steps: int) -> dict[str, Any]:
        given = self.base.runs[name].model_dump(mode="json", exclude_unset=True)
        return given | {"seed": seed, "steps": steps, "segment": None, "keep_every": None, "checkpoint_every": steps}

    def _experiment(self, runs: dict[str, Any], evaluations: dict[str, Any]) -> dict[str, Any]:
        content = self.base.model_dump(mode="json", exclude_unset=True)
        title = f"Time to quality: {', '.join(self.contenders)}"
        name = f"{self.base.name}-quality"
        return {**content, "name": name, "title": title, "bench": {}, "runs": runs, "evaluations": evaluations}


def points(steps: int) -> list[int]:
    """Return the steps at which a training of this length is scored."""
    return [int(steps * share) for share in SHARES]


def run_name(contender: str, seed: int, steps: int) -> str:
    """Name the run of a contender with a seed and a number of steps."""
    return f"{contender}-s{seed}-n{steps}"


def point_name(run: str, step: int) -> str:
    """Name the evaluation of a run after a step."""
    return f"{run}-at{step}"


def calibrated_seconds(
    measured: Mapping[str, Sequence[float]], *, beside: str, known: float | None
) -> dict[str, float]:
    """Return seconds per step of each contender, normalized to one reference contender.

    Args:
        measured: seconds per step in several trainings that took turns.
        beside: the reference contender.
        known: its seconds in the first measurement; None uses this one.
    """
    found = {name: median(each) for name, each in measured.items()}
    scale = 1.0 if known is None else known / found[beside]
    return {name: seconds * scale for name, seconds in found.items()}


def calibrated_steps(seconds: Mapping[str, float], *, budget_seconds: float) -> dict[str, int]:
    """Return steps of each contender that fill a budget of wall time, from its seconds per step.

    Raises:
        UserError: the budget is shorter than 8 steps.
    """
    steps = {name: int(budget_seconds / each) // PARTS * PARTS for name, each in seconds.items()}
    short = {name: seconds[name] for name, count in steps.items() if count < PARTS}
    if short:
        raise problem(
            "budget of the comparison",
            got=f"{budget_seconds / 60:g} minutes; a step takes {', '.join(f'{s:.2f} s ({n})' for n, s in short.items())}",
            expected=f"at least {PARTS} steps",
            fix="raise --budget-minutes",
        )
    return steps
