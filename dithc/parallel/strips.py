"""Strip of an image's tokens as the network requires them: partition, embedding, rotary position.

n rows of a batch; Z latent channels, h, w latent; T tokens of an image, t of a strip, D width, p side of a patch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from dithc.model import DiT


def by_token(model: DiT, x: Tensor) -> Tensor:
    """Rearrange latents (n, Z, h, w) into one row of patches (n, Z, p, T, p); its slices have complete tokens."""
    p, (rows, columns) = model.config.patch_size, model.config.grid
    return x.reshape(*x.shape[:2], rows, p, columns, p).permute(0, 1, 3, 2, 4, 5).flatten(3, 4)


def embedded(model: DiT, patches: Tensor, mine: slice) -> Tensor:
    """Return the tokens (n, t, D) of a strip of patches (n, Z, p, T, p)."""
    tokens: Tensor = model.x_embedder(patches[:, :, :, mine].flatten(3)) + model.pos_embed[:, mine]
    return tokens


@contextmanager
def rotated_from(model: DiT, mine: slice) -> Iterator[None]:
    """Restrict the rotary tables of all blocks to these tokens during the context."""
    whole = [block.attn.rotary for block in model.blocks]  # type: ignore[union-attr]
    if mine == slice(0, model.config.num_tokens) or all(table is None for tables in whole for table in tables):  # type: ignore[union-attr]
        yield
        return
    try:
        for block, tables in zip(model.blocks, whole, strict=True):
            block.attn.rotary = tuple(table if table is None else table[mine] for table in tables)  # type: ignore[union-attr]
        yield
    finally:
        for block, tables in zip(model.blocks, whole, strict=True):
            block.attn.rotary = tables  # type: ignore[union-attr]
