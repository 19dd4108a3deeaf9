"""Schema of the configuration: all settings of an experiment with documentation, defaults and checks.

Purpose: one definition of each key for the workflow engine, the command line, the JSON schema and docs/config.md. Files
in `config/` describe experiments; profiles in `profiles/` set the section `machine`.
Contents: frozen models (`ExperimentConfig` and its sections) and `load`, which reads a YAML file or a mapping.
Invariants: unknown keys are rejected, values are immutable, every field has a docstring. References to undefined names
are rejected before the first job.
Extending: add a field with a docstring and run `make generate`. A new kind of source, codec or extractor is a new model
with a separate `kind`; export it here if another package dispatches on it.
"""

from dithc.config.load import load, load_experiment, load_machine
from dithc.config.schema import ExperimentConfig, MachineConfig, codecs, datasets, evaluations, training
from dithc.config.stage_spec import stage_spec

__all__ = [
    "ExperimentConfig",
    "MachineConfig",
    "codecs",
    "datasets",
    "evaluations",
    "load",
    "load_experiment",
    "load_machine",
    "stage_spec",
    "training",
]
