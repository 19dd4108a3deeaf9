"""Similar tiles: candidates against all pairs, robustness to compression, and separation of different tiles."""

import io

import numpy as np
from PIL import Image

from dithc.data.splits.near_duplicates import RADIUS, NearDuplicates, candidates, compute_features


def synthetic_image(seed: int, size: int = 64) -> np.ndarray:
    """Create an image of large shapes with some noise, uint8 (S, S, 3)."""
    random = np.random.default_rng(seed)
    shapes = Image.fromarray(random.integers(30, 220, (7, 7, 3), dtype=np.uint8)).resize(
        (size, size), Image.Resampling.BICUBIC
    )
    return np.clip(np.asarray(shapes) + random.normal(0, 6, (size, size, 3)), 0, 255).astype(np.uint8)


def as_jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def stack_images(pictures: list[np.ndarray]) -> np.ndarray:
    return np.stack(pictures).transpose(0, 3, 1, 2)


def test_candidates_are_all_pairs_within_the_radius() -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 2**64, 300, dtype=np.uint64)
    flips = [
        sum(1 << int(bit) for bit in random.choice(64, count, replace=False)) for count in range(13) for _ in range(60)
    ]
    near = random.choice(hashes, len(flips)) ^ np.array(flips, dtype=np.uint64)
    together = random.permutation(np.concatenate([hashes, near]))
    expected = np.bitwise_count(together[:, None] ^ together[None]) <= RADIUS
    found = np.zeros_like(expected)
    for first, second in candidates(together):
        found[first, second] = found[second, first] = True
    np.fill_diagonal(expected, False)
    assert expected.sum() > 500
    np.testing.assert_array_equal(found, expected)


def test_hash_and_thumbnail_match_plain_block_averages() -> None:
    pixels = stack_images([synthetic_image(seed, 144) for seed in range(4)])
    hashes, small, _ = compute_features(pixels)
    grey = pixels.astype(np.float64).mean(1)
    blocks = grey.reshape(4, 8, 18, 9, 16).mean((2, 4))
    bits = (blocks[:, :, 1:] > blocks[:, :, :-1]).reshape(4, 64)
    assert [f"{value:064b}" for value in hashes.tolist()] == [
        "".join("01"[bit] for bit in row.astype(int)) for row in bits
    ]
    sixteenths = grey.reshape(4, 16, 9, 16, 9).mean((2, 4)).reshape(4, 256)
    steps = (sixteenths - sixteenths.mean(1, keepdims=True)) / sixteenths.std(1, keepdims=True) * 32
    assert abs(small - np.clip(steps, -127, 127)).max() <= 0.51


def test_compressed_brightened_and_downscaled_copies_are_joined() -> None:
    near, originals = NearDuplicates(), [synthetic_image(seed) for seed in range(30)]
    near.add(stack_images(originals), [f"a/{seed}" for seed in range(30)])
    half = [np.asarray(Image.fromarray(image).resize((32, 32)).resize((64, 64))) for image in originals]
    near.add(stack_images([as_jpeg(image, 60) for image in originals]), [f"b/{seed}" for seed in range(30)])
    near.add(
        stack_images([(image * 0.7 + 20).astype(np.uint8) for image in originals]), [f"c/{seed}" for seed in range(30)]
    )
    near.add(stack_images(half), [f"d/{seed}" for seed in range(30)])
    joined = near.joined()
    assert joined == {f"{letter}/{seed}": f"a/{seed}" for letter in "abcd" for seed in range(30)}
    assert (near.compared, near.groups, near.largest, near.cells) == (120, 30, 4, 120)


def test_flat_tiles_are_not_grouped_and_a_similarity_chain_is_one_group() -> None:
    random = np.random.default_rng(0)
    near = NearDuplicates()
    water = np.clip(40 + random.normal(0, 4, (50, 3, 64, 64)), 0, 255).astype(np.uint8)
    near.add(water, [f"w/{number}" for number in range(50)])
    near.add(np.full((5, 3, 64, 64), 7, np.uint8), [f"k/{number}" for number in range(5)])
    assert (near.compared, near.joined()) == (0, {})
    start, end = synthetic_image(1).astype(float), synthetic_image(2).astype(float)
    mixed = [(start * (1 - share) + end * share).astype(np.uint8) for share in np.linspace(0, 1, 30)]
    near.add(stack_images(mixed), [f"m/{number:02d}" for number in range(30)])
    near.add(stack_images([synthetic_image(3)]), ["m/00"])  # a unique tile in a cell of other tiles
    near.add(stack_images([as_jpeg(synthetic_image(3), 80)]), ["z"])
    assert set(near.joined()) == {f"m/{number:02d}" for number in range(30)} | {"z"}
    assert near.largest == 31
