"""The generated class folder resembles ImageNet: classes as folders, various sizes, some gray and some small images."""

from pathlib import Path

from PIL import Image

from dithc.data.synthetic import synthesize

SIZE = 48


def test_sizes_vary_and_some_images_are_gray_or_smaller_than_the_crop(tmp_path: Path) -> None:
    synthesize("image-folder", tmp_path / "pictures", seed=3, scenes=9, size=SIZE, classes=3)
    shapes, modes = [], []
    for path in sorted(tmp_path.glob("pictures/n*/*.JPEG")):
        with Image.open(path) as image:
            shapes.append(image.size)
            modes.append(image.mode)
    assert len(set(shapes)) > 20
    assert 0 < modes.count("L") < 6
    assert set(modes) == {"L", "RGB"}
    small = [shape for shape in shapes if min(shape) < SIZE]
    assert 0 < len(small) < 6
