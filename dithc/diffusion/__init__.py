"""The diffusion process: schedules, training losses and samplers, as pure functions around a `denoise` callable.

`Objective` defines the predicted quantity, the distribution of timesteps and their weights. `Schedule` holds the tables
of a noise schedule, with respacing and `q_sample`. `training_loss` computes the loss, `sample` runs a sampler of
`SAMPLERS` and `sample_flow` a flow sampler. `guided_denoiser` adds guidance by the unconditional prediction or by another model.
`BandLevels` separates the noise levels of groups of bands, and the module `cosines` transforms images. Training and sampling
share one set of tables. A network appears only as a callable, so that tests use cases with known answers.

Invariants:

- The package holds no generator and no network. Noise is an argument, per image: the image of a seed depends on neither
  batch nor rank.
- Tables are float64 and are rounded once, when they are combined with a tensor.
- A network receives the timesteps of its training, 0 .. num_steps - 1, for any respacing. A flow receives 0 .. 1000,
  including fractions.
- The network predicts noise or a velocity (C channels). With noise, C channels that interpolate the log variance may
  follow (2C channels).

Extending: a sampler is a function in `samplers.py` or `flow.py` with an entry in `SAMPLERS` or `FLOW_SAMPLERS`, and its
properties in `config.evaluations.SAMPLER_SPECS`. An external sampler is an object with `run(context)`, which `sampler_check.py`
tests on data with a known answer. A schedule is a constructor of `Schedule`. Another prediction target is a class in
`objective.py`.
"""

from dithc.diffusion.flow import sample_flow
from dithc.diffusion.guidance import guided_denoiser
from dithc.diffusion.levels import BandLevels
from dithc.diffusion.loss import training_loss
from dithc.diffusion.objective import Objective
from dithc.diffusion.samplers import SAMPLERS, sample
from dithc.diffusion.schedule import Schedule

__all__ = [
    "SAMPLERS",
    "BandLevels",
    "Objective",
    "Schedule",
    "guided_denoiser",
    "sample",
    "sample_flow",
    "training_loss",
]
