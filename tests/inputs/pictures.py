"""The synthetic class folder packed as ImageNet is distributed (tar archives in a tar archive), as WebDataset or as parquet."""

import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow
import pyarrow.parquet

SHARDS, ROWS_PER_GROUP = 2, 16


def pack(folder: Path, *, layout: str) -> None:
    """Replace the class folders by `layout`: tar, webdataset or parquet."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if layout == "tar":
        inner = ((f"{path.name}.tar", _tar((one.name, one.read_bytes()) for one in _natural(path))) for path in classes)
        (folder / "train.tar").write_bytes(_tar(inner))
    else:
        labelled = [(path, label) for label, of_class in enumerate(classes) for path in _natural(of_class)]
        for shard in range(SHARDS):
            part = [(path.name, path.read_bytes(), label) for path, label in labelled[shard::SHARDS]]
            if layout == "webdataset":
                (folder / f"train-{shard:06d}.tar").write_bytes(_tar(_samples(part)))
            else:
                path = folder / f"train-{shard:05d}-of-{SHARDS:05d}.parquet"
                _write_parquet(path, part, names=[one.name for one in classes])
    for path in classes:
        shutil.rmtree(path)


def _natural(folder: Path) -> list[Path]:
    return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))


def _samples(pictures: list[tuple[str, bytes, int]]) -> Iterable[tuple[str, bytes]]:
    for name, content, label in pictures:
        stem = name.split(".")[0]
        yield f"{stem}.jpg", content
        yield f"{stem}.cls", str(label).encode()


def _tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar archive without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _write_parquet(path: Path, pictures: list[tuple[str, bytes, int]], *, names: list[str]) -> None:
    """Write pictures (name, bytes, label) as Hugging Face does; `names` are those of the classes."""
    image = pyarrow.array([{"bytes": content, "path": name} for name, content, _ in pictures])
    labels = pyarrow.array([label for *_, label in pictures], pyarrow.int64())
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    info = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.table({"image": image, "label": labels}).replace_schema_metadata(info)
    pyarrow.parquet.write_table(table, path, row_group_size=ROWS_PER_GROUP, write_page_checksum=True)
