"""Memory of a training rank by category, in closed form.

Bytes per weight in fp32: weight, gradient, two moments and average. The kernels convert weights to bf16 by block and keep
no copy. Activations of an image: T tokens x D numbers x `kept_widths` per block (paper section 4.2).
"""

import math
from dataclasses import asdict, dataclass

from dithc.config import training

FP32_BYTES, BF16_BYTES = 4, 2
MOMENTS = 2
TRANSIENT_WIDTHS = (
    16  # numbers per token during the backward pass of a block, in multiples of the width; measured: 15.4
)
PARTED_WIDTHS = 13  # the same with recomputation by parts of the tokens; measured: 12.5
# Numbers per token that the ranks of dp+tp divide, in multiples of the width, and their gradients: qkv, attention, and the MLP
# before and after its nonlinearity. All ranks keep the other numbers.
SHARDED_WIDTHS = 12
# Memory of a process after its imports, with packed operands, thread stacks and heaps: 0.25 to 0.43 GB were measured.
PROCESS_BYTES = 430e6
# Share of the gradients that zero2 holds at the peak of a step; 0.86 to 0.97 were measured with DiT-S/2 on two ranks.
ZERO2_GRADIENTS = 0.97
# Memory of `dithc launch` and mpiexec on a node, and of the watchdog of each rank.
LAUNCHER_BYTES, WATCHDOG_BYTES = 35e6, 22e6
MPI_BYTES = 40e6  # of a rank, for libraries and buffers of MPI: 37 to 44 MB were measured on two nodes


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of a rank by category.

    Attributes:
        optimizer: moments.
        averages: averages of the weights.
        activations: tensors kept for the backward pass.
        snapshot: copy of the state for an asynchronous checkpoint.
        process: program, libraries, pools, temporary tensors.
    """

    weights: float
    gradients: float
    optimizer: float
    averages: float
    activations: float
    snapshot: float
    process: float = PROCESS_BYTES

    @property
    def state(self) -> float:
        """Weights, gradients, moments and averages."""
        return self.weights + self.gradients + self.optimizer + self.averages

    @property
    def total(self) -> float:
        return float(sum(asdict(self).values()))


def image_bytes(
    run: training.RunConfig, tokens: int, *, recompute: training.Recompute | None = None, tensor_ranks: int = 1
) -> float:
    """Return the bytes that an image with this number of tokens keeps for its backward pass on a rank."""
    width, depth, _ = run.model.shape
    divided = SHARDED_WIDTHS * (1 - 1 / tensor_ranks)
    kept = run.model.kept_widths - divided
    is_recomputed = (recompute or run.activation_checkpointing) == "block"
    number_bytes = BF16_BYTES if run.dtype == "bf16" else FP32_BYTES
    if not is_recomputed:
        return float(tokens * width * number_bytes * (depth * kept + TRANSIENT_WIDTHS - divided))
    is_parted = tokens >= training.PARTED_TOKENS
    widths = PARTED_WIDTHS - divided / 2 if is_parted else kept + TRANSIENT_WIDTHS - divided
    return float(tokens * width * (FP32_BYTES * depth + number_bytes * widths))  # inputs of blocks are fp32


def rank_memory(
    run: training.RunConfig,
    *,
    images: int = 0,
    tokens: int = 0,
    image: float | None = None,
    process: float = PROCESS_BYTES,
    recompute: training.Recompute | None = None,
    sharding: training.Sharding = "none",
    shards: int = 1,
    tensor_ranks: int = 1,
    stages: int = 1,
    snapshot: bool = False,
) -> RankMemory:
    """Return the memory of a rank.

    Args:
        images: images of a forward pass.
        image: measured bytes of an image; None for `image_bytes`.
        process: measured or assumed bytes of the process.
        recompute: replaces `activation_checkpointing` of the run.
        sharding: state that ranks share: none, moments and averages (node, zero1), also gradients (zero2).
        shards: ranks that share it.
        tensor_ranks: ranks that share the layers (dp+tp).
        stages: stages of the network; the first one holds the activations of up to 2 stages - 1 micro-batches.
        snapshot: whether checkpoints are written from a copy.
    """
    model = run.model
    stage = math.ceil(model.shape[1] / stages) / model.shape[1]  # share of the blocks
    weights = (model.matrix_elements / tensor_ranks + model.parameters - model.matrix_elements) * stage
    moments = MOMENTS * weights
    if run.optimizer.kind == "muon":  # one moment is sufficient for matrices
        moments -= model.matrix_elements / tensor_ranks * stage
    if sharding == "none":
        shards = 1
    kept = max(ZERO2_GRADIENTS, 1 / shards) if sharding == "zero2" else 1.0
    if image is None:
        image = image_bytes(run, tokens, recompute=recompute, tensor_ranks=tensor_ranks)
    return RankMemory(
        weights=FP32_BYTES * weights,
        gradients=FP32_BYTES * weights * kept,
        optimizer=FP32_BYTES * moments / shards,
        averages=FP32_BYTES * weights / shards,
        activations=images * image * (2 * stages - 1) * stage,
        snapshot=FP32_BYTES * (weights + (moments + weights) / shards) if snapshot else 0.0,
        process=process,
    )
