"""Texture: the decoder alone, trained against a small discriminator of patches; the encoder and every latent stay as they are.

Squared error blurs what it cannot know. The third phase of DC-AE's training (arXiv 2410.10733), on all bands, with the
weight of the adversarial part found at the decoder's last layer as in VQGAN (arXiv 2012.09841, equation 7).

Legend: N batch, C bands, H, W crop; Z latent channels, h, w latent.
"""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dithc.config import codecs
from dithc.latents.autoencoder import Autoencoder
from dithc.latents.batches import generator
from dithc.latents.codec_steps import Crops, check_finite, has_bf16, schedule
from dithc.log import MetricsWriter, progress

TEXTURE_STREAM = 5
WIDTH, SLOPE = 64, 0.2
BETAS = (0.5, 0.9)  # of both: the other's last steps count, not those long ago
DECODER_SHARE, JUDGE_SHARE = 0.1, 0.5  # of the codec's peak learning rate
MOST_WEIGHT = 10.0  # of the adversarial part: a discriminator that has learnt nothing would have a weight without bound
TINY = 1e-6  # delta of equation 7


class Discriminator(nn.Sequential):
    """How real patches of 16 x 16 pixels look, one number each, from images (N, C, H, W) to (N, 1, H / 4, W / 4).

    Its first layer is at the resolution of pixels, where texture is; weights start so that no layer makes signals weaker (He et
    al. 2015): what is to be seen is a few hundredths of the range, and with PyTorch's own start that takes far more steps.
    """

    def __init__(self, bands: int) -> None:
        super().__init__(
            nn.Conv2d(bands, WIDTH, 3, padding=1),  # sees 3 pixels
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(WIDTH, WIDTH, 4, stride=2, padding=1),  # 6
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),  # 10
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(WIDTH, 2 * WIDTH, 4, stride=2, padding=1),  # 16
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(2 * WIDTH, 1, 1),
        )
        for layer in self:
            if isinstance(layer, nn.Conv2d):
                assert layer.bias is not None
                nn.init.kaiming_normal_(layer.weight, a=SLOPE)
                nn.init.zeros_(layer.bias)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def hinge(real: Tensor, made: Tensor) -> Tensor:
    """Loss of a discriminator that is to tell real images by at least 1 and made ones by at most -1 (arXiv 1705.02894)."""
    return 0.5 * (functional.relu(1.0 - real).mean() + functional.relu(1.0 + made).mean())


def add_texture(net: Autoencoder, settings: codecs.KlVae, crops: Crops, metrics: Path, *, seed: int) -> None:
    """Trains the decoder of a trained codec for `texture_steps` more steps.

    Of the parameters of `net` those that the encoder has, too, are left out. The discriminator is thrown away.

    Args:
        net: changed in place; no parameter of it wants a gradient, before and after.
        settings: section of the configuration.
        crops: the steps go on where those of the training ended.
        metrics: folder to which each step is written: `loss` of reconstruction, `adversarial` of the decoder and its
            `adversarial_weight`, `discriminator`, `lr` of the decoder.
        seed: any integer.

    Raises:
        UserError: it diverged.
    """
    learnt = [net.synthesis, *net.decoder.parameters()]
    bf16 = has_bf16()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed=seed, epoch=0, stream=TEXTURE_STREAM).integers(1 << 63)))
        judge = Discriminator(net.bands)
        optimizers = [
            (share, torch.optim.AdamW(parameters, lr=0.0, betas=BETAS, weight_decay=0.0))
            for share, parameters in ((DECODER_SHARE, learnt), (JUDGE_SHARE, [*judge.parameters()]))
        ]
        for parameter in learnt:
            parameter.requires_grad_(True)
        with (
            progress(total=settings.texture_steps, label="texture", unit="step") as bar,
            MetricsWriter(metrics) as writer,
        ):
            for step in range(settings.texture_steps):
                lr = settings.lr * schedule(step, settings.texture_steps)
                for share, optimizer in optimizers:
                    optimizer.param_groups[0]["lr"] = share * lr
                    optimizer.zero_grad(set_to_none=True)
                said = _gradients(net, judge, crops.at(settings.steps + step), bf16=bf16)
                norms = [
                    float(torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0))
                    for _, optimizer in optimizers
                ]
                writer.write(settings.steps + step + 1, lr=DECODER_SHARE * lr, **said)
                check_finite(math.fsum([*said.values(), *norms]), lr=settings.lr, step=step, of="'s texture")
                for _, optimizer in optimizers:
                    optimizer.step()
                bar.update(1, loss=f"{said['loss']:.4f}")
    net.requires_grad_(False)


def _gradients(net: Autoencoder, judge: Discriminator, x: Tensor, *, bf16: bool) -> dict[str, float]:
    """Adds the gradients of one step to the decoder's parameters and to the discriminator's; returns what the metrics say."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        with torch.no_grad():
            mean, logvar = net.encode(x)  # (N, Z, h, w) each
            z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)  # (N, Z, h, w)
        out = net.decode(z)  # (N, C, H, W)
        made = out.detach().requires_grad_(True)  # (N, C, H, W)
        loss, adversarial = functional.mse_loss(made, x), -judge(made).float().mean()
    (of_loss,) = torch.autograd.grad(loss, made)  # (N, C, H, W)
    (of_judge,) = torch.autograd.grad(adversarial, made)  # (N, C, H, W)
    weight = adversarial_weight(net, out, of_loss, of_judge)
    torch.autograd.backward(out, of_loss + weight * of_judge)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        told = judge(torch.cat([x, made.detach()])).float()  # (2 N, 1, H / 4, W / 4)
        found = hinge(*told.chunk(2))
    torch.autograd.backward(found)
    return {
        "loss": float(loss.detach()),
        "adversarial": float(adversarial.detach()),
        "adversarial_weight": weight,
        "discriminator": float(found.detach()),
    }


def adversarial_weight(net: Autoencoder, out: Tensor, of_loss: Tensor, of_judge: Tensor) -> float:
    """The weight with which the adversarial part has a gradient as long as the reconstruction's at the decoder's last layer.

    Args:
        net: whose decoder made `out`.
        out: reconstructions with their graph, (N, C, H, W).
        of_loss, of_judge: gradients of both parts with respect to `out`, (N, C, H, W).
    """
    last = net.decoder[-1].weight
    assert isinstance(last, Tensor)
    one, other = (
        float(torch.autograd.grad(out, last, gradient, retain_graph=True)[0].norm()) for gradient in (of_loss, of_judge)
    )
    return min(one / (other + TINY), MOST_WEIGHT)
