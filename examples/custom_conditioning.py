"""A DiT with numeric conditions instead of class labels: python examples/custom_conditioning.py

Any condition that becomes one vector per image is possible: a text embedding, the day of the year, or columns of the
tiles (`Tiles(folder).column("conditions")`). This example uses the brightness and the contrast of an image, so that the
samples show if the network follows the condition.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import Tensor, nn

from dithc import diffusion
from dithc.config import training
from dithc.model import DiT

STEPS, BATCH, SIDE = 200, 32, 8
NULL = torch.zeros(1, 3)  # the null condition, marked by its last entry


class Conditions(nn.Module):
    """Map of numbers (N, 3) to the vector (N, D) that modulates every block; replaces the label table."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, y: Tensor) -> Tensor:
        return self.layers(y)


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, h, w) and their conditions (N, 3): brightness, contrast, and 1 for "condition exists"."""
    brightness, contrast = torch.rand(2, count, 1, generator=generator) * torch.tensor([[[1.6]], [[0.5]]])
    conditions = torch.cat([brightness - 0.8, contrast, torch.ones(count, 1)], dim=1)  # (N, 3)
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    return conditions[:, :1, None, None] + conditions[:, 1:2, None, None] * noise, conditions


def main() -> tuple[Tensor, Tensor]:
    """Train and sample with guidance; return the requested and the resulting brightness."""
    torch.manual_seed(0)
    model = DiT.from_preset(
        "DiT-S/2", input_size=SIDE, in_channels=1, hidden_size=64, depth=2, num_heads=2, learn_sigma=False
    )
    model.y_embedder = Conditions(64)  # after the model's initialization, to keep PyTorch's
    objective = diffusion.Objective.of(training.ObjectiveConfig(prediction_type="flow"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        x0, conditions = drawn(BATCH, generator)
        dropped = torch.rand(BATCH, 1, generator=generator) < 0.1  # guidance needs a trained null condition
        conditions = torch.where(dropped, NULL, conditions)
        t = torch.from_numpy(objective.times(torch.rand(BATCH, generator=generator).double().numpy()))
        noise = torch.randn(x0.shape, generator=generator)
        x_t = objective.noisy(x0, t, noise)
        output = model(x_t, t, conditions)
        loss = diffusion.training_loss(output, objective=objective, x0=x0, x_t=x_t, t=t, noise=noise)["loss"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}")

    asked = torch.tensor([[level / 10, 0.1, 1.0] for level in range(-7, 8)])  # (N, 3)
    denoise = diffusion.guided_denoiser(model, asked, null=NULL, scale=1.5)
    generators = [torch.Generator().manual_seed(seed) for seed in range(len(asked))]  # one seed per image
    images = diffusion.sample_flow("heun", velocity=denoise, steps=20, shape=(1, SIDE, SIDE), noise=generators)
    got = images.mean(dim=(1, 2, 3))  # (N)
    print("requested  " + " ".join(f"{level:5.2f}" for level in asked[:, 0].tolist()))
    print("result     " + " ".join(f"{level:5.2f}" for level in got.tolist()))
    return asked[:, 0], got


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()
