"""The diffusion process: its schedule, its training loss, its samplers; pure functions around a `denoise` callable.

What: `Schedule` (tables of a noise schedule, respaced at will, with `q_sample`), `training_loss`, `sample` (by name, from
`SAMPLERS`), `guided` (classifier-free guidance around a model) and `image_noise` (noise that belongs to each image).
Why: training and sampling share one set of tables; a network appears here only as a callable, so all of this is
tested against cases with a known answer.
Invariants:
- Nothing here holds a generator or a network of its own. Noise comes in through an argument, per image: the picture of a
  seed does not depend on the batch, or the rank, that it was drawn in.
- Tables are float64; they are rounded once, where they meet a tensor.
- Timesteps given to a network are those it was trained on, 0 .. num_steps - 1, whatever the respacing.
- The network predicts noise (C channels), or noise and the interpolation of the log variance (2C channels).
How to change it: a sampler is a function in `samplers.py` (or a file beside it) and a line of `SAMPLERS`; a
schedule is a constructor of `Schedule`.
"""

from dithc.diffusion.guidance import guided
from dithc.diffusion.loss import training_loss
from dithc.diffusion.noise import image_noise
from dithc.diffusion.samplers import SAMPLERS, sample
from dithc.diffusion.schedule import Schedule

__all__ = ["SAMPLERS", "Schedule", "guided", "image_noise", "sample", "training_loss"]
