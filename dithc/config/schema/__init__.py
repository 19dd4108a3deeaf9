"""Sections of the configuration: frozen pydantic models, one module per part of an experiment.

Contents: `experiment` contains all sections. `datasets` and `tiling` describe images, `codecs` autoencoders and feature
extractors, `training` and `run_sections` runs, `evaluations` sampling, scores and restorations, `machine` ranks and memory,
`benchmarks` measurements. `plugins` finds classes of installed packages, `base` defines common types.
Invariants: unknown keys are rejected, values are immutable, every field has a docstring.
Extending: a new section is a model here and a field of the section that contains it.
"""

from dithc.config.schema import codecs, datasets, evaluations, training
from dithc.config.schema.experiment import ExperimentConfig
from dithc.config.schema.machine import MachineConfig

__all__ = ["ExperimentConfig", "MachineConfig", "codecs", "datasets", "evaluations", "training"]
