"""Splits of a dataset do not become classes, whatever contains them."""

import logging
import tarfile
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from tests.data.readers.scene_readers import open_images
from tests.data.readers.system_files import touch


@pytest.mark.parametrize(
    ("names", "use"),
    [
        (["train/a/1.png", "train/b/1.png", "val/a/2.png", "val/b/2.png"], "train"),
        (["Train/a/1.png", "VALID/a/2.png", "meta/x/1.png"], "Train"),
        (["training/1.png", "testing/2.png"], "training"),
        (["train2017/1.png", "val2017/2.png", "test2017/2.png"], "train2017"),
        (["ILSVRC2012_img_train/n01/1.JPEG", "ILSVRC2012_img_val/1.JPEG"], "ILSVRC2012_img_train"),
        (["ILSVRC/Data/CLS-LOC/train/n01/1.JPEG", "ILSVRC/Data/CLS-LOC/val/1.JPEG"], "ILSVRC/Data/CLS-LOC/train"),
        (["cat/train/1.png", "cat/test/2.png", "dog/train/1.png"], "*/train/*"),
        (["validation/a/1.png", "test/a/1.png"], "validation"),
        (["train/a/1.png", "train/b/1.png"], "train"),
        (["split=train/1.png", "split=test/2.png"], "split=train"),
        (["split=train/label=cat/1.png", "split=test/label=cat/2.png"], "split=train"),
        (["01_train/1.png", "02_val/2.png"], "01_train"),
        (["1. Train images/1.png", "2. Test images/2.png"], "1. Train images"),
        (["train-clean/1.png", "valid-clean/2.png", "noise/3.png"], "train-clean"),
        (["fold1_train_256/1.png", "fold2_val_512/2.png"], "fold1_train_256"),
        (["dev/1.png", "eval/2.png"], "dev"),
        (["train/1.png", "holdout/2.png"], "train"),
        (["data/train/cat/1.png", "data/train/dog/2.png"], "data/train"),
        (["a/b/test/cat/1.png", "a/b/test/dog/2.png"], "a/b/test"),
        (["val/a/1.png", ".cache/x/1.png", "@eaDir/a/1.png"], "val"),
    ],
)
def test_source_that_contains_splits_is_rejected_with_the_folder_to_use(
    tmp_path: Path, names: list[str], use: str
) -> None:
    touch(tmp_path, *names)
    with pytest.raises(UserError, match="splits of a dataset") as caught:
        open_images(tmp_path)
    if use.startswith("*"):
        assert f"source.include: ['{use}']" in str(caught.value)
        assert open_images(tmp_path, include=[use]).classes == ["cat", "dog"]
    else:
        assert f"source.path: {tmp_path / use}`" in str(caught.value)
        assert len(open_images(tmp_path / use, classes="one")) == sum(name.startswith(f"{use}/") for name in names)


@pytest.mark.parametrize(
    "names",
    [
        ["train/1.png", "bicycle/1.png", "bus/1.png"],  # CIFAR-100 has a class "train"
        ["train/1.png"],
        ["train/deep/1.png", "bus/deep/1.png"],
        ["bullet_train/1.png", "test_tube/1.png", "freight_train/1.png", "crash_test/1.png"],
        ["train/1.png", "training/1.png"],  # a vehicle and a sport
        ["train_station/1.png", "train_track/1.png", "test_tube/1.png"],
        ["cat/train/1.png"],
        ["train_0/1.png", "bus_1/1.png", "plane_2/1.png"],
        ["test/a/1.png", "test/b/1.png", "other/a/1.png", "other/b/1.png"],
        ["valley/1.png", "trained/1.png", "testudo/1.png"],
    ],
)
def test_class_folders_that_resemble_splits_are_accepted(tmp_path: Path, names: list[str]) -> None:
    touch(tmp_path, *names)
    assert open_images(tmp_path).classes == sorted({name.partition("/")[0] for name in names})


def test_splits_are_logged_for_a_single_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dithc"), "propagate", True)
    touch(tmp_path, "train/a/1.png", "val/a/2.png")
    assert len(open_images(tmp_path, classes="one")) == 2
    assert "splits train, val" in caplog.text


@pytest.mark.parametrize(
    ("layout", "members"),
    [
        ("tar", {"a.tar": ["train/n01/1.png", "val/n01/2.png"]}),
        ("tar", {"a.tar": ["imagenet/train/1.png", "imagenet/val/2.png"]}),
        ("tar", {"train.tar": ["n01/1.png"], "val.tar": ["n01/2.png"]}),
        ("webdataset", {"in-train-0000.tar": ["1.png", "1.cls"], "in-validation-0000.tar": ["2.png", "2.cls"]}),
        ("webdataset", {"train_00.tar": ["1.png", "1.cls"], "val_00.tar": ["2.png", "2.cls"]}),
    ],
)
def test_splits_in_archives_are_rejected_unless_a_pattern_selects_a_split(
    tmp_path: Path, layout: str, members: dict[str, list[str]]
) -> None:
    (tmp_path / "in").mkdir()
    for archive, names in members.items():
        with tarfile.open(tmp_path / "in" / archive, "w") as file:
            for name in names:
                (tmp_path / "one").write_text("0")
                file.add(tmp_path / "one", name)
    with pytest.raises(UserError, match="splits of a dataset"):
        open_images(tmp_path / "in", layout=layout)
    if len(members) > 1:
        assert len(open_images(tmp_path / "in", layout=layout, include=["*train*"])) == 1
