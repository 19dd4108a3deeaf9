"""Latent decoding on several ranks: complete images per rank, or one image partitioned by rows.

The decoder runs unchanged on a rank's rows of the latent. Modules that read across row boundaries are replaced during
the call: 3 x 3 convolutions add the contributions of neighbor rows, group norms use statistics of all rows, and
attention reads all keys and values. The image equals the result of one rank except for the order of sums. A separate
tile would differ, because it has zero padding and its own norm statistics. Group norms of a single rank are replaced
for channels-last maps, because PyTorch's sequential fp32 sums lose the fourth digit at 1,024 px.

N images, Z latent channels, h, w latent; C channels, H, W image, or a map inside the decoder; G groups of a norm; R
ranks, h_r rows of rank r.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.logging import get_logger, user_error
from dithc.engine.cftp import partition
from dithc.latents import Codec
from dithc.sample.parallel.rank_set import RankSet, cut

CHUNK_ELEMENTS = 1 << 19  # elements per moment computation; they fit into a cache
ELEMENTWISE_LAYERS = nn.SiLU, nn.Identity, nn.Dropout, nn.Linear
# Modules of dithc and diffusers that only call other modules, add, and double rows.
COMPOSITE_LAYERS = {
    "Sequential",
    "ModuleList",
    "Block",
    "Decoder",
    "UNetMidBlock2D",
    "UpDecoderBlock2D",
    "AttnUpDecoderBlock2D",
    "ResnetBlock2D",
    "Upsample2D",
}
ATTENTION_PROCESSORS = "AttnProcessor", "AttnProcessor2_0"
ByRows = Literal["auto"] | bool
Forward = Callable[[Tensor], Tensor]
log = get_logger(__name__)


class ParallelDecoder:
    """Decoder of replicated latents; `obstacle` is the reason against a partition of images, or None."""

    def __init__(self, codec: Codec, ranks: RankSet, *, by_rows: ByRows = False) -> None:
        """Select the method and log the reason. `by_rows` True partitions every image.

        "auto" partitions the images left after an equal number of complete images per rank. Codecs with an obstacle are
        never partitioned.
        """
        self._codec, self._ranks, self._by_rows = codec, ranks, by_rows
        self.obstacle = reason = unsupported_reason(codec) if ranks.size > 1 else None
        if ranks.size == 1 or by_rows is False:
            return
        if reason is not None:
            log.info(
                f"{ranks.size} ranks decode complete images each: {codec.id} cannot be partitioned by rows, {reason}"
            )
            self._by_rows = False
        elif by_rows is True:
            log.info(f"{ranks.size} ranks decode every image together by rows (parallel_vae is set)")
        else:
            log.info(f"{ranks.size} ranks decode complete images each, and the remaining images together by rows")

    def __call__(self, latents: Tensor) -> Tensor:
        """Return images (N, C, H, W) of latents (N, Z, h, w) on the first rank; an empty tensor (0) on others.

        Images are decoded one at a time because the bits of a convolution may depend on the batch. Raises UserError if
        `by_rows` is True and a latent has fewer rows than ranks.
        """
        ranks, count = self._ranks, len(latents)
        if ranks.size == 1:
            return self._decode_all(latents)
        if self._by_rows is True:
            num_complete = 0
        elif self._by_rows == "auto" and latents.shape[2] >= ranks.size:
            num_complete = count - count % ranks.size
        else:
            num_complete = count
        parts = []
        if num_complete > 0:
            local = latents[partition(num_complete, ranks.size)[ranks.rank]]
            parts.append(ranks.gather(self._decode_all(local), cut(num_complete, ranks.size)))
        for latent in torch.split(latents[num_complete:], 1) if num_complete < count else ():
            lengths = rows_of(latent, ranks)
            rows = decoded_rows(self._codec, latent, ranks, lengths=lengths)
            factor = rows.shape[2] // lengths[ranks.rank]
            parts.append(ranks.gather(rows, [factor * length for length in lengths], dim=2))
        return _concatenate([part for part in parts if part is not None], latents)

    def _decode_all(self, latents: Tensor) -> Tensor:
        with _row_parallel(RankSet(), self._codec.decoder_parts, ()):
            images = [self._codec.decode(latent) for latent in torch.split(latents, 1) if len(latent) > 0]
        return _concatenate(images, latents)


def rows_of(latent: Tensor, ranks: RankSet) -> list[int]:
    """Return the rows of a latent (N, Z, h, w) per rank; UserError if there are fewer rows than ranks."""
    height = latent.shape[2]
    if height < ranks.size:
        raise user_error(
            "machine.sampling.parallel_vae",
            got=f"latents of {height} rows for {ranks.size} ranks",
            expected="at least one row for each rank that shares an image",
            fix="set it to auto or false, or share an image among fewer ranks",
        )
    return cut(height, ranks.size)


@torch.no_grad()
def decoded_rows(codec: Codec, latent: Tensor, ranks: RankSet, *, lengths: Sequence[int]) -> Tensor:
    """Return this rank's rows (N, C, H h_r / h, W) of the decoded images, for a codec without `obstacle`.

    `lengths` are the rows of each rank, at least one.
    """
    assert min(lengths) > 0, f"a rank without rows: {lengths}"
    assert sum(lengths) == latent.shape[2], f"{lengths} of {latent.shape[2]} rows"
    first = sum(lengths[: ranks.rank])
    with _row_parallel(ranks, codec.decoder_parts, lengths):
        return codec.decode(latent[:, :, first : first + lengths[ranks.rank]])


def unsupported_reason(codec: Codec) -> str | None:
    """Return the reason that a codec's decoder cannot be partitioned by rows, or None."""
    if not codec.decoder_parts:
        return "because its decoder layers are not accessible"
    for part in codec.decoder_parts:
        for name, module in part.named_modules():
            if not _is_supported(module):
                return f"because layer {name or 'itself'} ({type(module).__name__}) is not supported by rows"
    return None


def _concatenate(images: list[Tensor], latents: Tensor) -> Tensor:
    """Concatenate images; return a single image without a copy, and an empty tensor for an empty list."""
    if not images:
        return latents.new_empty(0)
    return torch.cat(images) if len(images) > 1 else images[0]


def _is_supported(module: Any) -> bool:
    kind = type(module).__name__
    if isinstance(module, nn.Conv2d):
        side = module.kernel_size[0]
        shape = module.kernel_size, module.padding, module.stride, module.dilation, module.padding_mode
        return side in (1, 3) and shape == ((side, side), (side // 2, side // 2), (1, 1), (1, 1), "zeros")
    if kind == "Attention":
        return module.spatial_norm is None and type(module.processor).__name__ in ATTENTION_PROCESSORS
    if kind == "ResnetBlock2D" and (module.upsample is not None or module.downsample is not None):
        return False
    return isinstance(module, (nn.GroupNorm, *ELEMENTWISE_LAYERS)) or kind in COMPOSITE_LAYERS


@contextmanager
def _row_parallel(ranks: RankSet, parts: Sequence[nn.Module], lengths: Sequence[int]) -> Iterator[None]:
    """Replace modules of a decoder during the context so that each works over the rows of all ranks."""
    replaced: list[nn.Module] = []

    def replace(module: Any, forward: Forward) -> None:
        module.__dict__["forward"] = forward
        replaced.append(module)

    try:
        for part in parts:
            for module in part.modules():
                if isinstance(module, nn.GroupNorm):
                    replace(module, _row_group_norm(module, ranks))
                elif ranks.size == 1:
                    continue
                elif isinstance(module, nn.Conv2d) and module.kernel_size[0] > 1:
                    replace(module, _row_convolution(module, ranks))
                elif type(module).__name__ == "Attention":
                    projected: Any = module
                    for projection in (projected.to_k, projected.to_v):
                        replace(projection, _gathered_projection(projection, ranks, lengths))
        yield
    finally:
        for module in replaced:
            del module.__dict__["forward"]


def _row_convolution(module: nn.Conv2d, ranks: RankSet) -> Forward:
    """Return a 3 x 3 convolution over all ranks' rows: the local convolution plus neighbor rows, without copies."""

    def edge_contribution(row: Tensor, tap: int) -> Tensor:
        weight = module.weight[:, :, tap : tap + 1]  # (C', C, 1, 3)
        return functional.conv2d(row, weight, padding=(0, 1), groups=module.groups)

    def forward(x: Tensor) -> Tensor:
        receive = ranks.exchange_edges(x[:, :, :1], x[:, :, -1:])  # (N, C, 1, W) each
        out = functional.conv2d(x, module.weight, module.bias, padding=1, groups=module.groups)
        above, below = receive()
        if above is not None:
            out[:, :, :1] += edge_contribution(above, 0)
        if below is not None:
            out[:, :, -1:] += edge_contribution(below, 2)
        return out

    return forward


def _row_group_norm(module: nn.GroupNorm, ranks: RankSet) -> Forward:
    """Return a group norm over all ranks' positions, combined in rank order: bitwise equal on all ranks."""
    single_rank_forward: Forward = module.forward

    def forward(x: Tensor) -> Tensor:
        if ranks.size == 1 and x.is_contiguous():
            return single_rank_forward(x)
        count, mean, squares = _moments(x, module.num_groups)
        local = torch.stack([torch.full_like(mean, count), mean, squares])  # (3, N, G) fp64
        counts, means, all_squares = ranks.all_gather(local.unsqueeze(0), [1] * ranks.size).unbind(1)  # (R, N, G) each
        mean, squares = _pool(counts, means, all_squares)
        deviation = (squares / counts.sum(dim=0) + module.eps).sqrt()  # (N, G)
        repeats = module.num_channels // module.num_groups
        scale = (1.0 / deviation).repeat_interleave(repeats, dim=1)  # (N, C)
        if module.weight is not None:
            scale = scale * module.weight
        shift = -mean.repeat_interleave(repeats, dim=1) * scale
        if module.bias is not None:
            shift = shift + module.bias
        shape = (*scale.shape, *[1] * (x.ndim - 2))
        scale, shift = scale.to(x.dtype).view(shape), shift.to(x.dtype).view(shape)
        return torch.addcmul(shift, x, scale, out=torch.empty_like(x))

    return forward


def _moments(x: Tensor, groups: int) -> tuple[int, Tensor, Tensor]:
    """Return count, mean and sum of squared deviations of x (N, C, ...) per group, (N, G) fp64, chunk by chunk."""
    dims = tuple(range(2, x.ndim))
    length = max(1, CHUNK_ELEMENTS * x.shape[2] // x.numel())
    counts, means, squares = [], [], []
    for piece in torch.split(x, length, dim=2):
        piece = piece.float()
        mean = piece.mean(dim=dims, keepdim=True)
        counts.append(piece[0, 0].numel())
        means.append(mean.view(len(x), groups, -1))
        squares.append((piece - mean).square_().sum(dim=dims).view(len(x), groups, -1))
    mean, square = torch.stack(means).double(), torch.stack(squares).double()  # (pieces, N, G, C / G)
    weight = torch.tensor(counts, dtype=torch.float64).view(-1, 1, 1, 1).expand_as(mean)
    weight, mean, square = (part.movedim(3, 1).flatten(0, 1) for part in (weight, mean, square))  # (parts, N, G)
    return sum(counts) * x.shape[1] // groups, *_pool(weight, mean, square)


def _pool(counts: Tensor, means: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sum of squared deviations over all parts, (N, G) each, from each part's, (parts, N, G)."""
    mean = (counts * means).sum(dim=0) / counts.sum(dim=0)
    return mean, (squares + counts * (means - mean).square()).sum(dim=0)


def _gathered_projection(module: Any, ranks: RankSet, lengths: Sequence[int]) -> Forward:
    """Return a projection (keys or values) gathered over all ranks: row order is token order."""
    local_forward: Forward = module.forward

    def forward(x: Tensor) -> Tensor:
        part = local_forward(x)  # (N, tokens of these rows, D)
        repeats = part.shape[1] // lengths[ranks.rank]
        return ranks.all_gather(part, [repeats * length for length in lengths], dim=1)

    return forward
