"""A custom training loop with parts of dithc: python examples/custom_loop.py FOLDER [STEPS]

The network, the data and the loop are yours. dithc provides the objective (`Objective`, `training_loss`), the
optimizer, background checkpoints that the next start resumes, and the samplers. Stop it at any time and restart it: it
continues with equal numbers. On two ranks: `dithc launch --ranks 2 -- python examples/custom_loop.py FOLDER`.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import numpy as np
import torch
from torch import Tensor, nn

from dithc import diffusion, train
from dithc.config import training
from dithc.engine import comm

BATCH, SIDE, CHANNELS = 32, 8, 32


class Net(nn.Module):
    """Small convolutional network: x (N, 1, h, w), timesteps (N) -> prediction of the objective."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(2, CHANNELS), nn.SiLU(), nn.Linear(CHANNELS, CHANNELS))
        self.first, self.last = nn.Conv2d(1, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, 1, 3, padding=1)
        self.middle = nn.Sequential(nn.SiLU(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.SiLU())

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t.float() * (torch.pi / 2000)
        known = self.time(torch.stack([angle.cos(), angle.sin()], dim=1))  # (N, channels)
        return self.last(self.middle(self.first(x) + known[:, :, None, None]))


def batch_of(step: int, rank: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return this rank's share of a step's images (bright or dark), time quantiles and noise, from the step."""
    draws = np.random.default_rng([0, step])
    levels = draws.choice([-1.0, 1.0], size=(BATCH, 1, 1, 1)) * np.ones((1, 1, SIDE, SIDE))
    arrays = levels, draws.random(BATCH), draws.standard_normal(levels.shape)
    images, shares, noise = (torch.from_numpy(array[rank::size]) for array in arrays)
    return images.float(), shares, noise.float()


def main(folder: str, steps: int = 200) -> Tensor | None:
    """Train and draw 16 images, most of them bright or dark; None on other ranks, or after a requested stop."""
    objective = diffusion.Objective.of(training.ObjectiveConfig(prediction_type="flow"))
    with comm.init_distributed() as group:
        torch.manual_seed(0)  # equal weights on all ranks
        strategy = train.Strategy(Net(), group)
        net = strategy.prepare(torch.zeros(1, 1, SIDE, SIDE), torch.zeros(1))
        optimizer = train.Optimizer(strategy, lr=3e-3)
        with train.CheckpointManager(folder, group, optimizer, every=50, metadata={"batch": BATCH}) as checkpoints:
            for step in range(checkpoints.step + 1, steps + 1):
                x0, shares, noise = batch_of(step, group.rank, group.size)
                t = torch.from_numpy(objective.times(shares.numpy()))
                x_t = objective.noisy(x0, t, noise)
                losses = diffusion.training_loss(net(x_t, t), objective=objective, x0=x0, x_t=x_t, t=t, noise=noise)
                strategy.backward(losses["loss"].mean())
                optimizer.step()
                if group.rank == 0 and step % 50 == 0:
                    print(f"step {step}: loss {losses['loss'].mean().item():.3f}")
                if not checkpoints.after(step):
                    break
        if checkpoints.status or group.rank:
            return None
        generators = [torch.Generator().manual_seed(seed) for seed in range(16)]  # one seed per image
        velocity, shape = objective.sampled(strategy.model), (1, SIDE, SIDE)
        images = diffusion.sample_flow("heun", velocity=velocity, steps=20, shape=shape, noise=generators)
        print("levels " + " ".join(f"{level:.2f}" for level in images.mean(dim=(1, 2, 3)).tolist()))
        return images


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("steps", metavar="STEPS", type=int, nargs="?", default=200)
    main(**vars(parser.parse_args()))
