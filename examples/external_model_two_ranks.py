"""Training of an external model on two ranks:

    dithc launch --ranks 2 -- examples/external_model_two_ranks.py FOLDER [STEPS]

The network is torch's transformer. HCOps computes its operators if they are faster, AutoMem limits it to 2 MiB of fast
memory, ZeRO-1 divides the optimizer state among the ranks, and checkpoints are written in the background. You can stop
it at any time and restart it on any number of ranks. Without `dithc launch` it runs on one rank.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

import torch
from torch import Tensor, nn

from dithc import train
from dithc.engine import comm, hcops
from dithc.engine.automem import AutoMem
from dithc.engine.memory import Tiers, TierSpec

BATCH, LENGTH, WORDS, WIDTH = 16, 32, 64, 128


class Transformer(nn.Module):
    """Network from words (N, T) to the logits of each next word, (N, T, words)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        x = self.words(words) + self.places.weight[: words.shape[1]]
        return self.head(self.layers(x, mask=mask, is_causal=True))


def batch_of(step: int, rank: int, size: int) -> Tensor:
    """Return this rank's share of a step's sentences (N, T + 1), which count up with random strides, from the step."""
    draws = torch.Generator().manual_seed(step)
    first, stride = (torch.randint(1, WORDS, (BATCH, 1), generator=draws) for _ in range(2))
    return ((first + stride * torch.arange(LENGTH + 1)) % WORDS)[rank::size]


def main(folder: str, steps: int = 200) -> int:
    """Train; return the exit status: 0, or 75 after a requested stop with a checkpoint."""
    tiers = Tiers([
        TierSpec(name="fast", kind="ddr", budget_bytes=2 << 20),
        TierSpec(name="slow", kind="ddr", budget_bytes=None),
    ])  # fmt: skip
    with comm.init_distributed() as group:
        torch.manual_seed(0)  # equal weights on all ranks; a mismatch is rejected
        model = Transformer()
        patched = hcops.patch(model)
        AutoMem(model, tiers=tiers)
        strategy = train.Strategy(model, group, sharding="zero1")
        model = strategy.prepare(batch_of(0, 0, BATCH)[:, :-1])  # once, with a sample input of one sentence
        optimizer = train.Optimizer(strategy, lr=1e-3, weight_decay=0.01, clip=1.0)
        with train.CheckpointManager(folder, group, optimizer, every=50, metadata={"batch": BATCH}) as checkpoints:
            for step in range(checkpoints.step + 1, steps + 1):
                words = batch_of(step, group.rank, group.size)
                loss = nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
                strategy.backward(loss)  # averages over all ranks
                metrics = optimizer.step()
                if group.rank == 0 and (step % 10 == 0 or step == steps):
                    print(f"step {step}: loss {loss.item():.3f}, gradient {metrics['grad_norm']:.2f}", flush=True)
                if not checkpoints.after(step):
                    break
        if group.rank == 0:
            print(patched)  # backend of each operator, and its speedup
    return checkpoints.status


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("steps", metavar="STEPS", type=int, nargs="?", default=200)
    sys.exit(main(**vars(parser.parse_args())))
