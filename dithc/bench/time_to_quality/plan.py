"""Plan of a comparison: an experiment with the compared runs and their evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from dithc.bench.environment import require_among
from dithc.config import ExperimentConfig, evaluations
from dithc.core.artifacts import digest
from dithc.core.logging import user_error

SHARES = (0.125, 0.25, 0.5, 1.0)
PARTS = 8  # steps are a multiple of it, so that every share is an integer
CALIBRATION_ROUNDS = 3  # one disturbance does not change their median
SCHEDULE = ("warmup_steps", "lr_schedule", "decay_fraction")
# Settings of a run that do not affect the time per step.
UNTIMED = (*SCHEDULE, "lr", "betas", "weight_decay", "steps", "seed")
SAME_SAMPLES = ("num_images", "seed", "real_split", "num_real_images", "extractor")
SAME_TILES = ("source", "tiles", "split", "rendering")


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """Comparison of training runs.

    Attributes:
        base: experiment that contains the compared runs.
        baseline: run to compare with.
        candidates: runs to compare with `baseline`; the baseline's own name is allowed and trains with other seeds.
        seeds: seeds of the runs.
        evaluation: evaluation of `base` that defines sampling and scoring. A variant that needs another sampler has a
            separate evaluation, with the same images, real tiles and extractor.
        environment: digest of the environment of the timed steps.
    """

    base: ExperimentConfig
    baseline: str
    candidates: tuple[str, ...]
    seeds: tuple[int, ...]
    evaluation: str
    environment: str = ""

    calibration_steps: ClassVar[int] = 24

    def __post_init__(self) -> None:
        require_among("runs of the comparison", self.variants, self.base.runs)
        require_among("evaluations of the comparison", [self.evaluation], self.base.evaluations)
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds or not self.candidates:
            raise user_error(
                "seeds and candidates of the comparison",
                got=f"seeds {list(self.seeds)}, candidates {list(self.candidates)}",
                expected="at least one of each, and no seed twice",
                fix="correct --seeds and --candidates",
            )
        for name in self.variants:
            self._check(name)

    def _check(self, name: str) -> None:
        """Check that a variant and the baseline have the same evaluation and tiles."""
        run, candidate, baseline = self.base.runs[name], self._evaluation_of(name), self._evaluation_of(self.baseline)
        data, base_data = (self.base.datasets[self.base.runs[one].dataset] for one in (name, self.baseline))
        differing = [f"evaluation's {key}" for key in SAME_SAMPLES if getattr(candidate, key) != getattr(baseline, key)]
        differing += [f"dataset's {key}" for key in SAME_TILES if getattr(data, key) != getattr(base_data, key)]
        if run.init_from_run is not None:
            differing.append(f"start: it continues run {run.init_from_run}, without the time of that run")
        if differing:
            raise user_error(
                f"variant {name}",
                got=f"another {', another '.join(differing)} than {self.baseline}",
                expected="the same tiles, number of samples and real images",
                fix="correct the experiment file, or compare other runs",
            )

    @property
    def variants(self) -> tuple[str, ...]:
        """Baseline, then candidates."""
        return (self.baseline, *(name for name in self.candidates if name != self.baseline))

    @property
    def pairs(self) -> list[tuple[str, str, int, int]]:
        """Compared pairs: candidate, label, seed of the baseline and seed of the candidate."""
        offset = max(self.seeds) + 1
        return [
            (name, "again" if name == self.baseline else name, seed, seed + offset if name == self.baseline else seed)
            for name in self.candidates
            for seed in self.seeds
        ]

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Distinct runs and seeds, with compared runs adjacent."""
        pairs = dict.fromkeys(
            one for name, _, seed, other in self.pairs for one in ((self.baseline, seed), (name, other))
        )
        return list(pairs)

    def first_run(self, name: str, steps: Mapping[str, int]) -> str:
        """Name a variant's run with its first seed."""
        return run_name(name, next(seed for one, seed in self.runs if one == name), steps[name])

    def identity(self, name: str) -> str:
        """Return the digest of every value that determines a variant's seconds per step."""
        run = self.base.runs[name]
        data = self.base.datasets[run.dataset]
        settings = (run, data, self.base.codecs[data.codec], self.base.machine)
        content = [one.model_dump(mode="json", exclude_defaults=True) for one in settings]
        content[0] = {key: value for key, value in content[0].items() if key not in UNTIMED}
        return digest([*content, self.environment])

    def calibrations(self, name: str, names: Sequence[str]) -> list[str]:
        """Return the names of the short runs that time a variant among `names`; identical steps share one run."""
        group = digest(sorted({self.identity(one) for one in names}))
        return [f"calibrate-{self.identity(name)}-{group}-{number}" for number in range(CALIBRATION_ROUNDS)]

    def calibration(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the experiment of short interleaved runs that measure step times."""
        runs: dict[str, Any] = {}
        for number in range(CALIBRATION_ROUNDS):
            for name in names:
                run = self._run(name, seed=number, steps=self.calibration_steps)
                # The schedule does not affect the time, and may require more steps.
                runs[self.calibrations(name, names)[number]] = {key: run[key] for key in run if key not in SCHEDULE}
        return self._experiment(runs, {})

    def experiment(self, steps: Mapping[str, int]) -> dict[str, Any]:
        """Return the experiment to evaluate, with `steps` per variant, multiples of 8."""
        runs: dict[str, Any] = {}
        evaluations: dict[str, Any] = {}
        for name, seed in self.runs:
            interval, run = steps[name] // PARTS, run_name(name, seed, steps[name])
            retention = {"keep_every": interval, "checkpoint_every": interval, "keep_last": 1}
            runs[run] = self._run(name, seed=seed, steps=steps[name]) | retention
            evaluation = self._evaluation_of(name).model_dump(mode="json", exclude_unset=True) | {"run": run}
            for at_step in evaluation_steps(steps[name]):
                evaluations[evaluation_name(run, at_step)] = evaluation | {"checkpoint": at_step}
            for bound, checkpoint in ((self.untrained, "untrained"), (self.codec_alone(name), "codec")):
                evaluations.setdefault(bound, evaluation | {"checkpoint": checkpoint})
        return self._experiment(runs, evaluations)

    @property
    def untrained(self) -> str:
        """Name of the evaluation of the baseline's untrained weights."""
        return f"{self.baseline}-untrained"

    def codec_alone(self, name: str) -> str:
        """Name the evaluation of a variant's codec. Variants may share it."""
        return f"codec-{self.base.datasets[self.base.runs[name].dataset].codec}"

    def _evaluation_of(self, name: str) -> evaluations.EvaluationConfig:
        evaluation = self.base.evaluations[self.evaluation]
        matching = (one for one in self.base.evaluations.values() if one.run == name)
        return evaluation if evaluation.run == name else next(matching, evaluation)

    def _run(self, name: str, *, seed: int, steps: int) -> dict[str, Any]:
        settings = self.base.runs[name].model_dump(mode="json", exclude_unset=True)
        jobs = {"steps_per_job": None, "keep_every": None, "checkpoint_every": steps}
        return settings | {"seed": seed, "steps": steps} | jobs

    def _experiment(self, runs: dict[str, Any], evaluations: dict[str, Any]) -> dict[str, Any]:
        content = self.base.model_dump(mode="json", exclude_unset=True)
        title = f"Time to quality: {', '.join(self.variants)}"
        name = f"{self.base.name}-quality"
        return {**content, "name": name, "title": title, "bench": {}, "runs": runs, "evaluations": evaluations}


def evaluation_steps(steps: int) -> list[int]:
    """Return the steps at which a run of this length is scored."""
    return [int(steps * share) for share in SHARES]


def run_name(variant: str, seed: int, steps: int) -> str:
    """Name the run of a variant with a seed and a number of steps."""
    return f"{variant}-s{seed}-n{steps}"


def evaluation_name(run: str, step: int) -> str:
    """Name the evaluation of a run after a step."""
    return f"{run}-at{step}"


def calibrated_seconds(
    measured: Mapping[str, Sequence[float]], *, reference: str, known: float | None
) -> dict[str, float]:
    """Return seconds per step of each variant, scaled to the first measured seconds `known` of a reference, if any."""
    medians = {name: median(times) for name, times in measured.items()}
    scale = 1.0 if known is None else known / medians[reference]
    return {name: seconds * scale for name, seconds in medians.items()}


def calibrated_steps(seconds: Mapping[str, float], *, budget_seconds: float) -> dict[str, int]:
    """Return the steps of each variant that fill a budget of wall time, given its seconds per step."""
    steps = {name: int(budget_seconds / step_seconds) // PARTS * PARTS for name, step_seconds in seconds.items()}
    short = {name: seconds[name] for name, count in steps.items() if count < PARTS}
    if short:
        raise user_error(
            "budget of the comparison",
            got=f"{budget_seconds / 60:g} minutes; a step takes "
            f"{', '.join(f'{s:.2f} s ({n})' for n, s in short.items())}",
            expected=f"at least {PARTS} steps",
            fix="raise --budget-minutes",
        )
    return steps
