"""Supervision within the network: the tokens of an early block are drawn to those of a later one, or to the clean latents.

Legend: N images, T tokens, D width, C channels, p side of a patch.
Sources: LayerSync (Haghighi et al. 2025, arXiv 2510.12581): minus the cosine similarity, token by token, with a later block's
output that is taken as given. SRA 2 (Wang et al. 2026, arXiv 2601.17830): a small MLP on the tokens predicts the codec's latents;
one hidden layer of width D with SiLU, Huber's loss and an optimizer of its own are choices made here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from dithc import hcops
from dithc.comm import Group
from dithc.config import training
from dithc.log import problem
from dithc.model import DiT
from dithc.tensors import Piece
from dithc.train.optimizer import Optimizer
from dithc.train.strategy import Strategy

WEIGHT = "weight."  # what the head's weights are called in a checkpoint, beside the state of their optimizer


class Alignment:
    """What is added to the loss of each image until a step, from tokens that are tapped as the network runs.

    The network is as it was: hooks are there during a forward pass only, and the head of `to: latents` is no part of it, of its
    average, of the gradient that is clipped, or of the exchange of gradients that runs beside the backward pass.

    Attributes:
        settings: of the run.
        head: what tells the latents from tokens; None for `to: layer`.
        norm: of the head's gradient, over all ranks, once `finish` was called; None for `to: layer`.
    """

    def __init__(
        self, settings: training.Align, run: training.Run, model: DiT, strategy: Strategy, *, seed: int
    ) -> None:
        """Prepares to tap `model`, which `strategy` has prepared and settled.

        Raises:
            UserError: ranks share its layers.
        """
        if strategy.layout.tensor_size > 1:
            raise problem(
                "`align` of the run",
                got=f"strategy {strategy.layout.name}, in which {strategy.layout.tensor_size} ranks share every layer",
                expected="ranks that have whole layers",
                remedy="use strategy cftp or dp, or leave `align` out",
            )
        self.settings, self._strategy = settings, strategy
        self._patch = model.config.patch_size
        places = [settings.at] + ([settings.target] if settings.target is not None else [])
        self._blocks = [model.blocks[place - 1] for place in places]
        self.head: nn.Module | None = None
        self.norm: float | None = None
        self._optimizer: Optimizer | None = None
        if settings.to == "latents":
            width, patch = model.config.hidden_size, model.config.in_channels * self._patch**2
            self.head = _head(width, patch, seed=seed)
            plain = run.model_copy(update={"optimizer": training.Optimizer()})  # AdamW: Muon is for blocks
            self._optimizer = Optimizer(self.head, plain, flat=False)

    def is_on(self, step: int) -> bool:
        """Whether it counts in an optimizer step (1 is the first)."""
        return self.settings.until is None or step <= self.settings.until

    @contextmanager
    def tapping(self) -> Iterator[list[Tensor]]:
        """Gives the list to which the forward pass of a `with` block adds the tokens (N, T, D) of the blocks of interest."""
        taps: list[Tensor] = []
        hooks = [block.register_forward_hook(lambda _, __, output: taps.append(output)) for block in self._blocks]
        try:
            yield taps
        finally:
            for hook in hooks:
                hook.remove()

    def losses(self, taps: list[Tensor], x0: Tensor) -> Tensor:
        """What is to be small, of each image (N) fp32, before its weight: -1 at best for a layer, 0 for latents.

        Args:
            taps: what the forward pass of these images left.
            x0: (N, C, height, width), clean latents.
        """
        if self.head is None:
            tokens, target = taps
            similarity = functional.cosine_similarity(tokens.float(), target.detach().float(), dim=2)  # (N, T)
            return -similarity.mean(1)  # (N)
        (tokens,) = taps
        patches = hcops.vector.patchify(x0, self._patch)  # (N, T, C*p*p)
        predicted = self.head(tokens)  # (N, T, C*p*p)
        return functional.smooth_l1_loss(predicted.float(), patches.float(), reduction="none").mean((1, 2))  # (N)

    def finish(self, group: Group) -> bool:
        """After the backward passes of a step: sums the head's gradient over the ranks; whether it can be learnt from."""
        if self.head is None or self._optimizer is None:
            return True
        gradients = [weight.grad for weight in self.head.parameters() if weight.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(self._strategy.scale)
        group.all_reduce_(flat, meter=self._strategy.meter)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        self.norm = self._optimizer.clip()
        return self._optimizer.takes(self.norm)

    def update(self, step: int) -> None:
        """Moves the head, after `finish`, at the learning rate of the network."""
        if self._optimizer is not None:
            self._optimizer.step(step)

    def zero(self) -> None:
        """Forgets the head's gradient."""
        if self._optimizer is not None:
            self._optimizer.zero()

    def pieces(self) -> list[Piece]:
        """The head and the state of its optimizer, which every rank has whole; nothing where there is no head."""
        if self.head is None or self._optimizer is None:
            return []
        weights = [Piece.whole(WEIGHT + name, value) for name, value in self.head.state_dict().items()]
        return weights + self._optimizer.pieces()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over what `pieces` gave, whole tensors by name; only where there is a head."""
        assert self.head is not None
        assert self._optimizer is not None
        weights = {name.removeprefix(WEIGHT): tensors[name] for name in tensors if name.startswith(WEIGHT)}
        self.head.load_state_dict(weights)
        self._optimizer.load({name: tensors[name] for name in tensors if not name.startswith(WEIGHT)})


def _head(width: int, patch: int, *, seed: int) -> nn.Module:
    """D -> D -> C*p*p, with initial weights from the seed alone, so the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, patch))
