"""How the gradients of the ranks become one: plain at one rank, DistributedDataParallel at several.

Legend: N batch, C channels.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dithc.comm import Group
from dithc.log import logger

log = logger(__name__)


class Strategy:
    """Wraps a model for training on the ranks of a group; the model itself knows nothing of it.

    Attributes:
        module: what to call for a forward pass.
        scale: factor on a rank's loss: ranks' gradients are averaged, and are wanted as a sum of shares.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self.scale = float(group.size)
        self._parallel: DistributedDataParallel | None = None
        if group.size > 1:
            self._parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
            log.info(f"gradients of {group.size} ranks are averaged by DistributedDataParallel")
        self.module: nn.Module = self._parallel or model

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """For the forward and backward of a micro-batch: gradients travel in the backward of the last one only."""
        if self._parallel is None or last:
            return nullcontext()
        return self._parallel.no_sync()

    def settle(self, x: Tensor, t: Tensor, y: Tensor) -> None:
        """Runs two forward and backward passes without effect on the weights.

        DistributedDataParallel regroups parameters into buckets after its first backward. The order in which more than two
        ranks are summed depends on the place in a bucket, so a run that resumes would round its first step unlike
        one that went on; after this, every step has the final buckets.

        Args:
            x: (N, C, height, width), any input of the model.
            t: (N) timesteps.
            y: (N) labels.
        """
        if self._parallel is None:
            return
        for _ in range(2):
            output: Tensor = self.module(x, t, y)
            output.float().square().mean().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.grad = None
