"""Detection of tiles that look the same, to join their cells: a perceptual hash finds candidates, thumbnails decide.

Legend: N tiles, S side of a tile, P pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dithc.data.splits.equal_area_grid import Ints

Hashes = npt.NDArray[np.uint64]
Thumbnails = npt.NDArray[np.int8]

RADIUS, PART = 7, 16
"""Largest Hamming distance of candidates (of 64 bits), and bits per part. At distance 7, one of the four parts differs
in at most one bit. Of 200 photographs saved as JPEG of quality 75, 99% are within 7 bits of the original and 92%
within 3.
"""
MIN_CORRELATION = 0.97
"""Least correlation of the thumbnails of two tiles that look the same."""
MIN_TEXTURE = 3.0
"""Least standard deviation of a thumbnail, in levels of 255, for comparison. Hashes of water or snow depend on noise,
and would join all such tiles.
"""
SIDE, STEPS = 16, 32.0
"""Side of a thumbnail in pixels, and quantization steps per standard deviation."""
PAIRS_PER_CHUNK = 1 << 16


def compute_features(pictures: npt.NDArray[np.uint8]) -> tuple[Hashes, Thumbnails, npt.NDArray[np.bool_]]:
    """Compute the features that are compared, from images (N, 3, S, S): hashes, thumbnails and a mask of enough texture.

    Each bit of a difference hash compares one of 8 x 9 averages of the gray image with its left neighbor (Krawetz, "Kind of
    like that", 2013). Thumbnails of 16 x 16 averages (N, 256) have neither mean nor contrast.
    """
    gray = pictures.mean(axis=1, dtype=np.float32)  # (N, S, S)
    side = gray.shape[1]
    averages = _averaging_matrix(8, side) @ gray @ _averaging_matrix(9, side).T  # (N, 8, 9)
    bits = (averages[:, :, 1:] > averages[:, :, :-1]).reshape(len(gray), 64)
    hashes = np.packbits(bits, axis=1).view(">u8").ravel().astype(np.uint64)
    thumbnails = (_averaging_matrix(SIDE, side) @ gray @ _averaging_matrix(SIDE, side).T).reshape(len(gray), SIDE**2)
    thumbnails -= thumbnails.mean(axis=1, keepdims=True)
    texture = thumbnails.std(axis=1)  # (N,)
    steps = np.rint(thumbnails / np.maximum(texture, 1e-6)[:, np.newaxis] * STEPS)
    return hashes, np.clip(steps, -127, 127).astype(np.int8), texture >= MIN_TEXTURE


def _averaging_matrix(count: int, side: int) -> npt.NDArray[np.float32]:
    """Return the matrix (count, side) that averages a line of pixels over `count` equal parts."""
    ends = np.arange(count + 1) * side / count
    pixels = np.arange(side)
    shares = np.minimum(ends[1:, np.newaxis], pixels + 1) - np.maximum(ends[:-1, np.newaxis], pixels)
    return np.asarray(np.maximum(shares, 0.0) * count / side, np.float32)


def candidates(hashes: Hashes) -> Iterator[tuple[Ints, Ints]]:
    """Yield all pairs of hashes within `RADIUS` bits, many more than once, as two index arrays (P,).

    Sorting by a part without one of its bits groups hashes with parts that differ at most in that bit (multi-index
    hashing: Norouzi, Punjani and Fleet 2012, proposition 1).
    """
    for bit in range(64):
        part = np.uint64(((1 << PART) - 1) << bit // PART * PART & ~(1 << bit))
        keys = hashes & part
        order = np.argsort(keys, kind="stable")
        keys, sorted_hashes = keys[order], hashes[order]
        rows, step = np.arange(len(keys), dtype=np.int64), 0
        while len(rows):
            step += 1
            rows = rows[rows < len(keys) - step]
            rows = rows[keys[rows] == keys[rows + step]]
            close = rows[np.bitwise_count(sorted_hashes[rows] ^ sorted_hashes[rows + step]) <= RADIUS]
            if len(close):
                yield order[close], order[close + step]


@dataclass
class NearDuplicates:
    """Collector of tile features that joins the cells of tiles that look the same."""

    compared: int = 0  # tiles with enough texture
    groups: int = 0  # of several cells, as `largest`; set by `joined`
    largest: int = 0
    _hashes: list[Hashes] = field(default_factory=list)
    _thumbnails: list[Thumbnails] = field(default_factory=list)
    _cells: list[Ints] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def add(self, pictures: npt.NDArray[np.uint8], cells: list[str]) -> None:
        """Add tiles (N, 3, S, S) as displayed, each with its cell."""
        hashes, thumbnails, textured = compute_features(pictures)
        numbers = np.array([self._numbers.setdefault(cell, len(self._numbers)) for cell in cells], np.int64)
        self._hashes.append(hashes[textured])
        self._thumbnails.append(thumbnails[textured])
        self._cells.append(numbers[textured])
        self.compared += int(textured.sum())

    @property
    def cells(self) -> int:
        return len(self._numbers)

    def joined(self) -> dict[str, str]:
        """Return the first cell by name for each cell of a group of several."""
        if not self.compared:
            return {}
        cells, hashes, thumbnails, pairs = _unique(
            np.concatenate(self._cells), np.concatenate(self._hashes), np.concatenate(self._thumbnails)
        )
        for first, second in candidates(hashes):
            for start in range(0, len(first), PAIRS_PER_CHUNK):
                a, b = first[start : start + PAIRS_PER_CHUNK], second[start : start + PAIRS_PER_CHUNK]
                a, b = (part[cells[a] != cells[b]] for part in (a, b))
                same = _correlation(thumbnails[a], thumbnails[b]) >= MIN_CORRELATION
                pairs.append(np.stack([cells[a[same]], cells[b[same]]]))
        return self._connected_cells(np.concatenate(pairs, axis=1))

    def _connected_cells(self, pairs: Ints) -> dict[str, str]:
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        names = np.array(list(self._numbers))
        graph = coo_matrix((np.ones(pairs.shape[1], bool), (pairs[0], pairs[1])), shape=(len(names), len(names)))
        _, labels = connected_components(graph, directed=False)
        sizes = np.bincount(labels)
        self.groups, self.largest = int((sizes > 1).sum()), int(sizes.max())
        first: dict[int, str] = {}
        several = [(int(label), str(name)) for label, name in zip(labels, names, strict=True) if sizes[label] > 1]
        for label, name in sorted(several, key=lambda pair: pair[1]):
            first.setdefault(label, name)
        return {name: first[label] for label, name in several}


def _unique(cells: Ints, hashes: Hashes, thumbnails: Thumbnails) -> tuple[Ints, Hashes, Thumbnails, list[Ints]]:
    """Keep one of all tiles with identical features; also return cell pairs (2, P) with the others."""
    rows = np.concatenate([hashes[:, np.newaxis].view(np.int8), thumbnails], axis=1)
    _, first, group = np.unique(rows.view(f"V{rows.shape[1]}").ravel(), return_index=True, return_inverse=True)
    return cells[first], hashes[first], thumbnails[first], [np.stack([cells, cells[first][group.ravel()]])]


def _correlation(first: Thumbnails, second: Thumbnails) -> npt.NDArray[np.float32]:
    a, b = first.astype(np.float32), second.astype(np.float32)
    lengths = np.sqrt(np.einsum("pk,pk->p", a, a) * np.einsum("pk,pk->p", b, b))
    return np.asarray(np.einsum("pk,pk->p", a, b) / np.maximum(lengths, 1e-6))
