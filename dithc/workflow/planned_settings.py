"""Settings of plans for an experiment with `machine.strategy: auto`."""

from pathlib import Path

from dithc.config import ExperimentConfig
from dithc.core.logging import user_error
from dithc.engine.cost import records


def with_plans(experiment: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment with the settings of its plans if `machine.strategy` is auto; else unchanged.

    The plan of the run with the most floating-point operations sets `machine`. Each plan sets its run. The resolved
    configuration records both.

    Raises:
        UserError: the run with the most operations has no plan that fits.
    """
    if experiment.machine.strategy != "auto" or not experiment.runs:
        return experiment
    results = Path(experiment.results, experiment.name)
    records_of = {name: records.read_plan(records.plan_path(results, name)) for name in experiment.runs}
    settings = {name: record["settings"] for name, record in records_of.items() if record and record["plans"]}
    largest = max(
        experiment.runs,
        key=lambda name: (run := experiment.runs[name]).model.flops(1) * run.global_batch_size * run.steps,
    )
    if largest not in settings:
        path = records.plan_path(results, largest)
        fix = f"run `dithc plan --config FILE --run {largest}`, with --profile on a cluster"
        raise user_error("machine.strategy", got=f"auto without {path}", expected="a plan that fits", fix=fix)
    runs = {
        name: run.updated(**settings[name]["runs"][name]) if name in settings else run
        for name, run in experiment.runs.items()
    }
    return experiment.updated(machine=experiment.machine.updated(**settings[largest]["machine"]), runs=runs)
