"""Reading of images in class folders."""

from pathlib import Path

import numpy as np
import pytest

from dithc.core.logging import UserError
from dithc.data import write_png
from dithc.data.scene import Scene
from tests.data.readers.scene_readers import open_images
from tests.inputs.images import center_crop, read_rgb


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    for name, shape in {"b/1": (20, 30, 3), "a/2": (40, 20, 3), "a/1": (16, 16, 3)}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_png(tmp_path / f"{name}.png", draws.integers(0, 256, shape, dtype=np.uint8))
    write_png(tmp_path / "b" / "grey.png", draws.integers(0, 256, (20, 20), dtype=np.uint8))
    (tmp_path / "b" / "notes.txt").write_text("no picture")
    (tmp_path / "class_index.json").write_text("{}")
    return tmp_path


def test_classes_are_sorted_folders_and_images_are_center_cropped(image_folder: Path) -> None:
    source = open_images(image_folder, size=16)
    scenes = list(source)
    assert source.classes == ["a", "b"]
    assert [scene.scene_id for scene in scenes] == ["a/1.png", "a/2.png", "b/1.png", "b/grey.png"]
    assert all(isinstance(scene, Scene) for scene in scenes)
    found = [scene for scene in scenes if isinstance(scene, Scene)]
    assert [scene.label for scene in found] == [0, 0, 1, 1]
    expected = center_crop(read_rgb(image_folder / "a" / "2.png"), 16)
    np.testing.assert_array_equal(found[1].pixels, expected.transpose(2, 0, 1))
    assert found[1].units == "byte"


def test_folders_without_classes_or_images_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="an empty folder"):
        open_images(tmp_path)
    write_png(tmp_path / "flat.png", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(UserError, match="classes: one"):
        open_images(tmp_path)
    (tmp_path / "empty-class").mkdir()
    with pytest.raises(UserError, match="empty-class"):
        open_images(tmp_path)


@pytest.mark.parametrize("target", [".", "..", "/", "a", "a/deeper"])
def test_class_folders_with_shared_images_are_rejected(image_folder: Path, target: str) -> None:
    """Through links, images would have two labels, and a link to the root of the machine would be followed."""
    (image_folder / "a" / "deeper").mkdir()
    (image_folder / "z").symlink_to(target)
    with pytest.raises(UserError, match="also in another class folder") as caught:
        open_images(image_folder)
    assert "fix:" in str(caught.value)


def test_linked_class_folders_are_classes(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    chosen = tmp_path_factory.mktemp("chosen")
    for name in ("a", "b"):
        (chosen / name).symlink_to(image_folder / name)
    assert [scene.scene_id for scene in open_images(chosen, size=16)] == ["a/1.png", "a/2.png", "b/1.png", "b/grey.png"]
