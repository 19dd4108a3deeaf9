"""Settings of plans for an experiment with `machine.strategy: auto`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dithc.config import ExperimentConfig, training
from dithc.core.logging import user_error
from dithc.engine.cost import records


def with_plans(experiment: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment with the settings of its plans if `machine.strategy` is auto; else unchanged.

    The plan of the run with the most floating-point operations sets `machine`. Each plan sets its run. The resolved
    configuration records both.

    Raises:
        UserError: the run with the most operations has no plan that fits, or a plan is damaged or for other settings of its run.
    """
    if experiment.machine.strategy != "auto" or not experiment.runs:
        return experiment
    results = Path(experiment.results, experiment.name)
    largest = max(
        experiment.runs,
        key=lambda name: (run := experiment.runs[name]).model.flops(1) * run.global_batch_size * run.steps,
    )
    settings = {}
    for name, run in experiment.runs.items():
        path = records.plan_path(results, name)
        record = records.read_plan(path)
        fault = _fault(record, run) if path.exists() else "missing"
        if record is not None and fault is None:
            settings[name] = record["settings"]
        elif name == largest or fault != "missing":
            fix = f"run `dithc plan --config FILE --run {name}`, with --profile on a cluster"
            raise user_error(
                "machine.strategy", got=f"auto, and {path} is {fault}", expected="a plan that fits", fix=fix
            )
    runs = {
        name: run.updated(**settings[name]["runs"][name]) if name in settings else run
        for name, run in experiment.runs.items()
    }
    return experiment.updated(machine=experiment.machine.updated(**settings[largest]["machine"]), runs=runs)


def _fault(record: Mapping[str, Any] | None, run: training.RunConfig) -> str | None:
    """Return the reason against the existing plan of a run; None if it is valid."""
    if record is None:
        return "damaged"
    now, planned = records.network_settings(run), record["network"]
    if differing := [name for name in now if now[name] != planned.get(name)]:
        return f"for another {', '.join(differing)}"
    return None if record["plans"] else "without a plan that fits"
