"""The diffusion process: its schedule, its training loss, its samplers; pure functions around a `denoise` callable.

What: `Objective` (what a network predicts, at which times, how they count), `Schedule` (tables of a noise schedule, respaced
at will, with `q_sample`), `training_loss`, `sample` (by name, from `SAMPLERS`), `sample_flow` (likewise, for a flow) and
`guided` (guidance around a model, by itself without a label or another condition, or by another; `guidance_offset` trains it in).
Why: training and sampling share one set of tables; a network appears here only as a callable, so all of this is
tested against cases with a known answer.
Invariants:
- Nothing here holds a generator or a network of its own. Noise comes in through an argument, per image: the picture of a
  seed does not depend on the batch, or the rank, that it was drawn in.
- Tables are float64; they are rounded once, where they meet a tensor.
- Timesteps given to a network are those it was trained on, 0 .. num_steps - 1, whatever the respacing; for a flow 0 .. 1000,
  fractions among them.
- The network predicts noise, v or a velocity (C channels), or one of the first two and the interpolation of the log variance
  (2C channels). Samplers of `SAMPLERS` see noise, into which the objective turns v.
How to change it: a sampler is a function in `samplers.py` or `flow.py` and a line of `SAMPLERS` or `FLOW_SAMPLERS`,
or comes from outside, as an object with `run(walk)` that `trial.py` tries on data with a known answer; a
schedule is a constructor of `Schedule`; another thing to predict is a class in `objective.py`.
"""

from dithc.diffusion.flow import sample_flow
from dithc.diffusion.guidance import guidance_offset, guided
from dithc.diffusion.loss import training_loss
from dithc.diffusion.objective import Objective
from dithc.diffusion.samplers import SAMPLERS, sample
from dithc.diffusion.schedule import Schedule

__all__ = ["SAMPLERS", "Objective", "Schedule", "guidance_offset", "guided", "sample", "sample_flow", "training_loss"]
