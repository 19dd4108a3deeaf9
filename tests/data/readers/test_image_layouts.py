"""Images in four layouts are the same scenes; hostile archives are rejected, and deviations are counted."""

import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from dithc.core.logging import UserError
from dithc.data.readers import SceneSource
from dithc.data.scene import Reason, Rejection, Scene
from tests.data.readers import scene_readers

Pack = Callable[[dict[str, bytes], Path], Path]
open_images = partial(scene_readers.open_images, size=16)
CLASSES = ("n01440764", "n01443537", "n02102040")


def encode_image(seed: int, *, kind: str = "PNG", size: tuple[int, int] = (24, 20), **options: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **options)
    return buffer.getvalue()


def write_tar(target: Path, files: Iterable[tuple[str, bytes]], **changes: Any) -> Path:
    with tarfile.open(target, "w") as archive:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return target


def in_folders(image_files: dict[str, bytes], out: Path) -> Path:
    for name, content in image_files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    return out


def in_tar_of_tars(image_files: dict[str, bytes], out: Path) -> Path:
    inner = []
    for name in sorted(
        {name.split("/")[0] for name in image_files}, reverse=True
    ):  # classes are sorted, archives need not be
        path = write_tar(
            out / "inner", ((key.split("/")[1], it) for key, it in image_files.items() if key.startswith(name))
        )
        inner.append((f"{name}.tar", path.read_bytes()))
        path.unlink()
    return write_tar(out / "train.tar", inner)


def in_webdataset(image_files: dict[str, bytes], out: Path, *, as_json: bool = False) -> Path:
    names = sorted({name.split("/")[0] for name in image_files})
    (out / "class_index.json").write_text(json.dumps({number: [name, "x"] for number, name in enumerate(names)}))
    items = list(image_files.items())
    for shard in range(2):
        files = list[tuple[str, bytes]]()
        for number, (name, content) in enumerate(items[shard::2]):
            label, suffix = names.index(name.split("/")[0]), name.split(".")[-1]
            entry = ("json", json.dumps({"label": label, "id": name}).encode()) if as_json else ("cls", b"%d\n" % label)
            files += [(f"{number:06d}.{suffix}", content), (f"{number:06d}.{entry[0]}", entry[1])]
        write_tar(out / f"train-{shard:06d}.tar", files)
    return out


def in_parquet(image_files: dict[str, bytes], out: Path, *, flat: bool = False) -> Path:
    names = sorted({name.split("/")[0] for name in image_files})
    info = {"features": {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}
    items = list(image_files.items())
    for shard in range(2):
        part = items[shard::2]
        images = [content if flat else {"bytes": content, "path": name} for name, content in part]
        table = pyarrow.table({"image": images, "label": [names.index(name.split("/")[0]) for name, _ in part]})
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": info})})
        pyarrow.parquet.write_table(
            table, out / f"train-{shard:05d}-of-00002.parquet", row_group_size=2, write_page_checksum=True
        )
    return out


LAYOUTS: dict[str, Pack] = {
    "folders": in_folders,
    "tar": in_tar_of_tars,
    "webdataset": in_webdataset,
    "webdataset-json": lambda image_files, out: in_webdataset(image_files, out, as_json=True),
    "parquet": in_parquet,
    "parquet-flat": lambda image_files, out: in_parquet(image_files, out, flat=True),
}


def scenes_by_hash(scenes: SceneSource) -> dict[str, tuple[int, bytes, tuple[str, ...]]]:
    found = [scene for scene in scenes if isinstance(scene, Scene)]
    assert len(found) == len(scenes)
    return {scene.sha256: (scene.label, scene.pixels.tobytes(), scene.notes) for scene in found}


def rejections(scenes: SceneSource) -> dict[str, tuple[Reason, str]]:
    return {scene.scene_id: (scene.error.reason, scene.error.got) for scene in scenes if isinstance(scene, Rejection)}


@pytest.fixture
def image_files() -> dict[str, bytes]:
    kinds = {"JPEG": "JPEG", "PNG": "png"}
    return {
        f"{name}/{name}_{number}.{suffix}": encode_image(10 * place + number, kind=kind, size=(20 + number, 30 - place))
        for place, name in enumerate(CLASSES)
        for number, (kind, suffix) in enumerate(kinds.items())
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_are_equal_scenes_in_every_layout(tmp_path: Path, image_files: dict[str, bytes], layout: str) -> None:
    for name in ("folders", "packed"):
        (tmp_path / name).mkdir()
    plain = open_images(in_folders(image_files, tmp_path / "folders"))
    source = open_images(LAYOUTS[layout](image_files, tmp_path / "packed"))
    assert source.classes == plain.classes == list(CLASSES)
    assert scenes_by_hash(source) == scenes_by_hash(plain)
    assert len(scenes_by_hash(plain)) == len(image_files)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_single_class_source_ignores_labels_in_every_layout(
    tmp_path: Path, image_files: dict[str, bytes], layout: str
) -> None:
    source = open_images(LAYOUTS[layout](image_files, tmp_path), classes="one")
    assert len(source.classes) == 1
    assert {label for label, *_ in scenes_by_hash(source).values()} == {0}


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "-" not in name][1:])
def test_real_images_are_equal_scenes_in_every_layout(
    tmp_path: Path, real_data: Callable[[str], Path], layout: str
) -> None:
    folder = real_data("imagenet_sample")
    index = json.loads((folder / "imagenet_class_index.json").read_text())
    real = sorted(folder.glob("n*/*"))[::4]
    image_files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in real}
    plain = in_folders(image_files, tmp_path / "folders")
    (tmp_path / "packed").mkdir()
    source = open_images(LAYOUTS[layout](image_files, tmp_path / "packed"), size=64)
    order = [wnid for wnid, _ in index.values() if wnid in source.classes]
    assert source.classes == order, "another order than ImageNet's own"
    assert scenes_by_hash(source) == scenes_by_hash(open_images(plain, size=64))


def test_class_folders_in_an_archive_are_sorted(tmp_path: Path, image_files: dict[str, bytes]) -> None:
    renamed = [(f"./train/{name}", content) for name, content in reversed(image_files.items())]
    source = open_images(write_tar(tmp_path / "all.tar", renamed))
    assert source.classes == [f"train/{name}" for name in CLASSES]
    assert [scene.label for scene in source if isinstance(scene, Scene)] == [2, 2, 1, 1, 0, 0]
    assert next(iter(source)).scene_id == "train/n02102040/n02102040_1.png"


def test_separate_class_archives_require_a_layout_setting(tmp_path: Path) -> None:
    for number, name in enumerate(CLASSES):
        write_tar(tmp_path / f"{name}.tar", [(f"{name}_1.png", encode_image(number))])
    with pytest.raises(UserError, match="layout: tar"):
        open_images(tmp_path)
    assert open_images(tmp_path, layout="tar").classes == list(CLASSES)
    assert len(open_images(tmp_path, classes="one")) == len(CLASSES)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("a.tar", "b.parquet"), "2 x|1 x .tar, 1 x .parquet"),
        (("a.tar", "class/x.png"), "1 x .tar, folders"),
        (("a.tar.gz",), "no scene found"),
        (("data/a.tar",), "no scene found"),
    ],
)
def test_ambiguous_or_unsupported_folders_are_rejected_with_a_fix(
    tmp_path: Path, names: tuple[str, ...], text: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(encode_image(0))
    with pytest.raises(UserError, match=text) as error:
        open_images(tmp_path)
    assert "fix" in str(error.value)


@pytest.mark.parametrize("label", ["-1", "1.5", "dog", "", "9" * 17, "7" * 30, None])
def test_invalid_cls_labels_are_rejected_with_shard_and_sample(tmp_path: Path, label: str | None) -> None:
    files = [("a.png", encode_image(0)), ("a.cls", b"0"), ("b.png", encode_image(1))]
    write_tar(tmp_path / "s-0.tar", files if label is None else [*files, ("b.cls", label.encode())])
    found = rejections(open_images(tmp_path))
    assert list(found) == ["s-0.tar/b.png"]
    assert found["s-0.tar/b.png"][0] is Reason.WRONG_LABEL


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"label": true}', b'{"label": 0.0}', b'{"label": null}', b"[" * 10**5])
def test_non_integer_json_labels_are_rejected(tmp_path: Path, text: bytes) -> None:
    write_tar(
        tmp_path / "s.tar",
        [("a.png", encode_image(0)), ("a.json", text), ("b.png", encode_image(1)), ("b.json", b'{"label": 0}')],
    )
    assert [reason for reason, _ in rejections(open_images(tmp_path)).values()] == [Reason.WRONG_LABEL]


def test_parquet_rows_without_label_or_image_are_rejected_with_the_shard(tmp_path: Path) -> None:
    labels = [0, None, -1, 2, 1]
    images = [*({"bytes": encode_image(number), "path": "x"} for number in range(4)), {"bytes": None, "path": "x.png"}]
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), tmp_path / "a.parquet")
    (tmp_path / "class_index.json").write_text('{"0": ["cat"], "1": ["dog"]}')
    source = open_images(tmp_path)
    assert source.classes == ["cat", "dog"]
    assert rejections(source) == {
        "a.parquet/000001": (Reason.WRONG_LABEL, "none"),
        "a.parquet/000002": (Reason.WRONG_LABEL, "-1"),
        "a.parquet/000003": (Reason.WRONG_LABEL, "2"),
        "a.parquet/000004": (Reason.INCOMPLETE, "none"),
    }


@pytest.mark.parametrize(
    "columns",
    [
        {"img": [b"x"], "label": [0]},
        {"image": ["x"], "label": [0]},
        {"image": [b"x"], "label": [0.0]},
        {"image": [b"x"], "label": ["dog"]},
        {"image": [b"x"]},
    ],
)
def test_parquet_with_wrong_columns_is_rejected_with_a_rename_hint(
    tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="rename_column") as error:
        open_images(tmp_path)
    assert "image" in str(error.value)


def test_shards_with_different_splits_or_class_names_are_rejected(
    tmp_path: Path, image_files: dict[str, bytes]
) -> None:
    in_parquet(image_files, tmp_path)
    first_class = {name: content for name, content in image_files.items() if name.startswith(CLASSES[0])}
    (tmp_path / ".other").mkdir()
    in_parquet(first_class, tmp_path / ".other")
    (tmp_path / ".other" / "train-00000-of-00002.parquet").rename(tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(UserError, match="has other class names"):
        open_images(tmp_path)
    (tmp_path / "train-00001-of-00002.parquet").rename(tmp_path / "validation-00000-of-00001.parquet")
    with pytest.raises(UserError, match="train, validation"):
        open_images(tmp_path)


def test_altered_page_or_truncated_parquet_file_is_rejected(tmp_path: Path, image_files: dict[str, bytes]) -> None:
    in_parquet(image_files, tmp_path)
    path = tmp_path / "train-00000-of-00002.parquet"
    content = bytearray(path.read_bytes())
    position = content.index(next(iter(image_files.values()))[40:60])
    content[position] ^= 1
    path.write_bytes(content)
    found = rejections(open_images(tmp_path))
    assert [reason for reason, _ in found.values()] == [Reason.READ_ERROR] * 2, "a group of two rows"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="not a complete parquet file"):
        open_images(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("../x.png", {}),
        ("/tmp/x.png", {}),
        ("a/../../x.png", {}),
        ("a\\x.png", {}),
        ("x.png", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("x.png", {"type": tarfile.LNKTYPE, "linkname": "y.png"}),
        ("x.png", {"type": tarfile.FIFOTYPE}),
        ("x.png", {"type": tarfile.CHRTYPE}),
        ("x.png", {"type": tarfile.GNUTYPE_SPARSE}),
        ("x.png", {"size": 1 << 40}),
        ("x.png", {"size": -512}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_archives_with_hostile_entries_are_rejected(
    tmp_path: Path, name: str, changes: dict[str, Any], nested: bool
) -> None:
    info = tarfile.TarInfo(name)
    info.size = 600
    for key, value in changes.items():
        setattr(info, key, value)
    content = info.tobuf(tarfile.GNU_FORMAT) + bytes(600 + 424) + bytes(2 * 512)
    (tmp_path / "x.tar").write_bytes(content)
    path = write_tar(tmp_path / "outer.tar", [("n01440764.tar", content)]) if nested else tmp_path / "x.tar"
    with pytest.raises(UserError, match="cannot be read as an archive"):
        open_images(path)


def test_archives_truncated_at_any_position_are_rejected(tmp_path: Path) -> None:
    intact = write_tar(
        tmp_path / "x.tar", [(f"{number}/x.png", encode_image(number)) for number in range(4)]
    ).read_bytes()
    last = len(intact.rstrip(b"\0"))
    for position in [0, 100, 512, 700, *range(1024, last, 512), last]:
        (tmp_path / "x.tar").write_bytes(intact[:position])
        with pytest.raises(UserError, match=r"cannot be read as an archive"):
            open_images(tmp_path)


def test_damaged_tar_header_is_rejected_instead_of_ending_the_archive(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [(f"{number}/x.png", encode_image(number)) for number in range(4)])
    content = bytearray(path.read_bytes())
    content[content.index(b"2/x.png")] ^= 1
    path.write_bytes(content)
    with tarfile.open(path) as archive:
        assert len(archive.getnames()) == 2, "what tarfile itself makes of it"
    with pytest.raises(UserError, match=r"checksum|header"):
        open_images(path)


@pytest.mark.parametrize("behind", [b"x", bytes(2 << 20)])
def test_data_after_the_end_of_an_archive_is_rejected(tmp_path: Path, behind: bytes) -> None:
    path = write_tar(tmp_path / "x.tar", [("a/x.png", encode_image(0))])
    path.write_bytes(path.read_bytes() + behind)
    with pytest.raises(UserError, match="after its end"):
        open_images(path)


def test_compressed_archives_are_rejected_with_the_unpack_command(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"), io.BytesIO())
    with pytest.raises(UserError, match="gunzip"):
        open_images(tmp_path)


def test_archives_with_wrong_layout_or_ambiguous_samples_are_rejected(tmp_path: Path) -> None:
    sample = [("a.png", encode_image(0)), ("a.cls", b"0")]
    write_tar(tmp_path / "a.tar", sample)
    with pytest.raises(UserError, match="layout: webdataset"):
        open_images(tmp_path, layout="tar")
    write_tar(tmp_path / "b.tar", [("n1.tar", (tmp_path / "a.tar").read_bytes())])
    with pytest.raises(UserError, match="layout: tar"):
        open_images(tmp_path)
    (tmp_path / "b.tar").unlink()
    write_tar(tmp_path / "a.tar", [*sample, ("a.jpg", encode_image(1))])
    with pytest.raises(UserError, match="several images"):
        open_images(tmp_path)
    write_tar(tmp_path / "a.tar", [*sample, ("a.cls", b"1")])
    with pytest.raises(UserError, match="two files"):
        open_images(tmp_path)


def test_hidden_files_are_skipped_and_samples_without_image_rejected(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.png", encode_image(0)), ("a.cls", b"0"), ("._a.png", b"mac"), ("b.cls", b"0")])
    source = open_images(tmp_path)
    assert len(source) == 2
    assert list(rejections(source)) == ["a.tar/b.cls"], "a label without a picture is counted"


def test_entries_with_non_utf8_names_are_rejected(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("k/caf\udce9.png", encode_image(0)), ("k/b.png", encode_image(1))])
    assert list(rejections(open_images(tmp_path))) == ["a.tar/k/caf\\udce9.png"]


@pytest.mark.parametrize("table", ["{", "[]", '{"1": "dog"}', '{"0": 1}', '{"0": []}'])
def test_class_index_without_class_names_is_rejected(tmp_path: Path, table: str) -> None:
    write_tar(tmp_path / "a.tar", [("a.png", encode_image(0)), ("a.cls", b"0")])
    (tmp_path / "class_index.json").write_text(table)
    with pytest.raises(UserError, match="does not name the classes"):
        open_images(tmp_path)


def test_unusual_images_are_read_with_notes_and_broken_images_rejected(tmp_path: Path) -> None:
    """ImageNet and web collections contain these images besides plain images."""
    picture = Image.open(io.BytesIO(encode_image(0)))
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "cmyk.jpg": (picture.convert("CMYK"), {}),
        "grey.jpg": (picture.convert("L"), {}),
        "palette.png": (picture.convert("P"), {}),
        "alpha.png": (picture.convert("RGBA"), {}),
        "clear.png": (picture.convert("P"), {"transparency": 0}),
        "deep.png": (Image.fromarray(np.full((20, 20), 40000, np.uint16)), {}),
        "plain.jpg": (picture, {}),
        "rotated.jpg": (picture, {"exif": turned}),
        "animated.webp": (picture, {"save_all": True, "append_images": [picture.rotate(90)], "lossless": True}),
        "small.png": (picture.resize((9, 12)), {}),
    }
    (tmp_path / "k").mkdir()
    for name, (image, options) in kinds.items():
        image.save(tmp_path / "k" / name, **options)
    broken = {
        "empty.png": b"",
        "cut.jpg": encode_image(0, kind="JPEG")[:300],
        "text.png": b"hello",
        "cut.png": encode_image(0)[:-40],
    }
    header = encode_image(0)[:16] + (60_000).to_bytes(4) * 2
    broken["bomb.png"] = header + encode_image(0)[24:]
    for name, content in broken.items():
        (tmp_path / "k" / name).write_bytes(content)
    found = {scene.path.name: scene for scene in open_images(tmp_path)}
    notes = {name: scene.notes for name, scene in found.items() if isinstance(scene, Scene)}
    assert notes == {
        "cmyk.jpg": ("cmyk",),
        "grey.jpg": ("grayscale",),
        "palette.png": (),
        "alpha.png": ("alpha",),
        "clear.png": ("alpha",),
        "deep.png": ("grayscale", "16-bit"),
        "plain.jpg": (),
        "rotated.jpg": ("rotated",),
        "animated.webp": ("animated",),
        "small.png": ("enlarged",),
    }
    errors = {name: scene.error for name, scene in found.items() if isinstance(scene, Rejection)}
    assert errors.keys() == broken.keys()
    assert {error.reason for error in errors.values()} == {Reason.READ_ERROR}
    assert not any("0x" in error.got for error in errors.values()), "an address differs from run to run"
    plain, rotated = (found[name] for name in ("plain.jpg", "rotated.jpg"))
    np.testing.assert_array_equal(plain.pixels, rotated.pixels)  # the tag is ignored


def test_oversized_image_is_rejected_with_the_pixel_count(tmp_path: Path) -> None:
    content = bytearray(encode_image(0))
    content[16:24] = (60_000).to_bytes(4) * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4)
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "bomb.png").write_bytes(content)
    (found,) = open_images(tmp_path)
    assert "3600000000 pixels" in found.error.got
    assert "scale it down" in found.error.fix
