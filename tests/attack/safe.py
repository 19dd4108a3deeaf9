"""Hostile Sentinel-2 products of every level and baseline: files, metadata, names, permissions, and user masks."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.attack.products import SAFE, Draws, Trial, Workspace, copy_product, corrupt, file_of, replace

VARIANTS = ["safe", "l2a-2", "l2a-5", "l1c", "l1c-2", "l1c-granules"]
BAND = re.compile(r"_(B\w\w|SCL)(?:_(\d\d)m)?\.jp2$")
METADATA = re.compile(r"MTD_(?:MSI|SAF)L\w\w\w?.*\.xml$")


def files_read(granule: Path) -> set[Path]:
    """Return the files of a granule that are read on the 10 m grid: the finest of each band."""
    finest: dict[str, tuple[int, Path]] = {}
    for path in granule.rglob("IMG_DATA/**/*.jp2"):
        if found := BAND.search(path.name):
            size = int(found[2] or 0)
            finest[found[1]] = min(finest.get(found[1], (99, path)), (size, path))
    return {path for _, path in finest.values()}


def metadata_of(root: Path) -> Path:
    (found,) = (path for path in root.iterdir() if METADATA.search(path.name))
    return found


def variant_bytes(draws: Draws, workspace: Workspace) -> Trial:
    """Damage a file of a product of any level: rejected if read, else noted; each granule separately."""
    variant = draws.choice(VARIANTS)
    root = copy_product(workspace, variant)
    granules = sorted((root / "GRANULE").iterdir())
    path = file_of(draws, root, draws.choice(["*.jp2", "*.jp2", "*.xml", "manifest.safe", "*"]))
    whole = path.read_bytes()
    content, did = draws.choice([corrupt(draws, whole), (b"", "empty")])
    replace(path, content)
    others = [one for one in granules if not path.is_relative_to(one)] if path.is_relative_to(root / "GRANULE") else []
    kept = tuple(one.relative_to(workspace.files).as_posix() for one in others) if len(granules) > 1 else ()
    changed = content != whole and path.name != "manifest.safe"
    read = path == metadata_of(root) or any(path in files_read(one) for one in granules)
    return Trial(
        source=SAFE,
        did=f"{variant}, {path.name}: {did}",
        like=variant,
        rejected=changed and read,
        kept=kept,
        note="damaged-unused-file" if changed and not read else "",
    )


def odd_names(draws: Draws, workspace: Workspace) -> Trial:
    """Rename or nest products, granules and files, also in odd encodings."""
    root = copy_product(workspace)
    granule = next((root / "GRANULE").iterdir())
    latin = os.fsdecode(b"S2A_\xe9t\xe9.SAFE")
    variants: dict[str, tuple[Callable[[], object], bool]] = {
        "latin-1": (lambda: root.rename(root.with_name(latin)), True),
        "latin-1 granule": (lambda: granule.rename(granule.with_name(os.fsdecode(b"L2A_\xff"))), True),
        "latin-1 file": (lambda: (root / os.fsdecode(b"\xff\xfe.txt")).touch(), False),
        "control": (lambda: root.rename(root.with_name("a\n\tb.SAFE")), False),
        "long": (lambda: root.rename(root.with_name("x" * 240 + ".SAFE")), False),
        "no suffix": (lambda: root.rename(root.with_name("product")), False),
        "no granule": (lambda: shutil.rmtree(root / "GRANULE"), True),
        "a granule more": (lambda: shutil.copytree(granule, granule.with_name("L2A_copy")), True),
        "granule renamed": (lambda: granule.rename(granule.with_name("x")), True),
        "both levels": (lambda: shutil.copy(metadata_of(root), root / "MTD_MSIL1C.xml"), True),
        "no metadata": (lambda: metadata_of(root).unlink(), True),
        "within another": (lambda: root.rename(shutil.copytree(root, workspace.files / "x.SAFE") / "y.SAFE"), False),
        "no manifest": (lambda: (root / "manifest.safe").unlink(), False),
    }
    damage = draws.choice(sorted(variants))
    do, rejected = variants[damage]
    do()
    # Only the granule that the manifest lists stays a scene.
    kept = (granule.relative_to(workspace.files).as_posix(),) if damage == "a granule more" else ()
    return Trial(source=SAFE, did=damage, rejected=rejected, kept=kept)


def protected_files(draws: Draws, workspace: Workspace) -> Trial:
    variant = draws.choice(VARIANTS[:-1])
    root = copy_product(workspace, variant)
    (granule,) = (root / "GRANULE").iterdir()
    read = sorted(files_read(granule))
    path = draws.choice(
        [*read, metadata_of(root), root / "manifest.safe", root, granule, granule / "IMG_DATA", root / "GRANULE"]
    )
    if path.is_file():
        shutil.copy(path, workspace.files / "new").replace(path)  # replaces the hard link to the good input
    path.chmod(draws.choice([0, 0o200, 0o111 if path.is_file() else 0o000]))
    return Trial(source=SAFE, did=f"{variant}: {path.name}", like=variant)


GENERATORS = [variant_bytes, odd_names, protected_files]
