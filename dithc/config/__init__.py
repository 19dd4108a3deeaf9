"""The only schema: every setting of an experiment, documented, with its default, checked before the first job.

What: frozen models (`Experiment` and the sections in it) and `load`, which reads a YAML file or a mapping.
Why: one place decides what a key means; the workflow engine, the command line, the JSON schema and the defaults file all
come from it. Science is in `config/`, the machine in `profiles/` (it sets the section `machine`).
Invariants: unknown keys are refused; values never change; every field has a docstring; a name that refers to nothing is
an error here, not in hour three.
How to change it: add a field with its docstring, run `make generate`, use it. A new kind of source, codec or extractor is
a new model with its own `kind` (export it here if a room dispatches on it).
"""

from dithc.config import codecs, datasets, training
from dithc.config.experiment import Experiment
from dithc.config.load import experiment_of, load, named
from dithc.config.machine import Machine

__all__ = ["Experiment", "Machine", "codecs", "datasets", "experiment_of", "load", "named", "training"]
