"""Schema of the configuration: all settings of an experiment with documentation, defaults and checks.

Purpose: one definition of each key for the workflow engine, the command line, the JSON schema and docs/config.md. Files
in `config/` describe experiments; profiles in `profiles/` set the section `machine`.
Contents: frozen models (`Experiment` and its sections) and `load`, which reads a YAML file or a mapping.
Invariants: unknown keys are rejected, values are immutable, every field has a docstring. References to undefined names
are rejected before the first job.
Extending: add a field with a docstring and run `make generate`. A new kind of source, codec or extractor is a new model
with a separate `kind`; export it here if another package dispatches on it.
"""

from dithc.config import codecs, datasets, training
from dithc.config.experiment import Experiment
from dithc.config.load import experiment_of, load, load_machine, named
from dithc.config.machine import Machine
from dithc.config.stage_spec import stage_spec

__all__ = [
    "Experiment",
    "Machine",
    "codecs",
    "datasets",
    "experiment_of",
    "load",
    "load_machine",
    "named",
    "stage_spec",
    "training",
]
