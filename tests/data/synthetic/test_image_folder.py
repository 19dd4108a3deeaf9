"""The generated class folder resembles ImageNet: classes as folders, various sizes, some gray and some small images."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from dithc.config import datasets
from dithc.data.readers import read_scenes
from dithc.data.scene import Scene
from dithc.data.synthetic import synthesize
from tests.inputs.pictures import pack

SIZE = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inputs") / "pictures"
    synthesize("image-folder", out, seed=3, scenes=9, size=SIZE, classes=3)
    return out


def test_every_class_is_a_folder_of_as_many_pictures(folder: Path) -> None:
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    assert [path.name for path in classes] == ["n00000001", "n00000002", "n00000003"]
    for path in classes:
        names = {picture.name for picture in path.iterdir()}
        assert names == {f"{path.name}_{number}.JPEG" for number in range(1, 10)}


def test_sizes_vary_and_some_pictures_are_grey_or_smaller_than_the_crop(folder: Path) -> None:
    shapes, modes = [], []
    for path in sorted(folder.glob("n*/*.JPEG")):
        with Image.open(path) as image:
            shapes.append(image.size)
            modes.append(image.mode)
    assert len(set(shapes)) > 20
    assert 0 < modes.count("L") < 6
    assert set(modes) == {"L", "RGB"}
    small = [shape for shape in shapes if min(shape) < SIZE]
    assert 0 < len(small) < 6


@pytest.mark.parametrize("layout", ["tar", "webdataset", "parquet"])
def test_packed_pictures_are_those_of_the_folders_under_the_same_labels(
    folder: Path, tmp_path: Path, layout: str
) -> None:
    source = datasets.ImageFolder(kind="image-folder", path="pictures", size=SIZE)
    out = Path(shutil.copytree(folder, tmp_path / "out"))
    pack(out, layout=layout)
    assert not [path for path in out.iterdir() if path.is_dir()]
    plain, packed = read_scenes(source, folder), read_scenes(source, out)
    assert packed.classes == plain.classes
    labels = [{scene.sha256: scene.label for scene in scenes if isinstance(scene, Scene)} for scenes in (plain, packed)]
    assert labels[0] == labels[1]
    assert len(labels[0]) == 27
