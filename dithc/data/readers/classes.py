"""Checks of class folders: none contains another, and they are not the splits of a dataset."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dithc.core.logging import UserError, get_logger, user_error
from dithc.data.file_checks import printable

KINDS = {
    "train": ("train", "training", "trn", "trainval"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "tst", "eval", "evaluation", "holdout"),
}
"""Kinds of splits, in the order in which the fix prefers them, and their names."""
SPLIT_NAMES = {name: kind for kind, names in KINDS.items() for name in names}
NOISE = r"set|split|data|images?|imgs?|part|shard"
SPLIT, IGNORED = re.compile(rf"({'|'.join(SPLIT_NAMES)})(?:{NOISE})*"), re.compile(rf"(?:{NOISE}|of|tar|parquet)+")
SEPARATORS = re.compile(r"[-=_.\s\d]+")
log = get_logger(__name__)


def check_disjoint(folder: Path, folders: list[Path]) -> None:
    """Raise UserError if links nest class folders in each other or around the source: images would have two labels."""
    owners: dict[Path, Path] = {}
    targets = [(path, path.resolve()) for path in folders]
    for path, target in targets:
        if owners.setdefault(target, path) != path:
            raise _nested_error(path, owners[target])
    for path, target in [(folder, folder.resolve()), *targets]:
        outer = next((owners[parent] for parent in target.parents if parent in owners), owners.get(target, path))
        if outer != path:
            raise _nested_error(path, outer)


def _nested_error(inner: Path, outer: Path) -> UserError:
    return user_error(
        f"the content of {printable(str(inner))} is also in another class folder",
        got=f"{printable(str(outer))}, which leads to {printable(str(outer.resolve()))}",
        expected="separate class folders, so that each image has one label",
        fix="remove the link, or link a folder of one class",
    )


def check_splits(folder: Path, paths: Iterable[Path], *, single: bool = False) -> None:
    """Raise UserError for images of several splits below `folder`, which would become classes or be trained on.

    This applies to folders or archives with one parent whose names differ in the split, and to a folder of classes as
    the only content of `folder`. A single split name next to other names is a class, such as `train` of CIFAR-100. If
    all images are of a `single` class, the log names the splits instead.
    """
    nodes = set[Path]()
    for parent in {path.parent for path in paths}:
        nodes.update(node for node in (parent, *parent.parents) if folder in node.parents)
    counts = Counter(node.parent for node in nodes)
    groups = defaultdict[tuple[Path, str], dict[str, list[Path]]](dict)
    for node in sorted(nodes):
        for template, kind in _find_splits(node.name):
            groups[node.parent, template].setdefault(kind, []).append(node)
    for (parent, _), splits in groups.items():
        ordered = [splits[kind][0] for kind in KINDS if kind in splits]
        split, name = ordered[0], printable(ordered[0].name)
        is_all = sum(map(len, splits.values())) == counts[parent]
        if len(ordered) < 2 and (single or not is_all or not split.is_dir() or not _is_only(split, folder, counts)):
            continue
        names = ", ".join(printable(node.name) for node in ordered)
        if single:
            log.warning(f"{folder}: the splits {names} become one dataset")
            continue
        pattern = f"*/{name}/*" if split.is_dir() else re.sub("[0-9]+", "*", name)
        select = f"set `source.include: ['{pattern}']`"
        if split.is_dir() and (parent == folder or sum(node.name == split.name for node in nodes) == 1):
            select = f"set `source.path: {printable(str(split))}`"
        raise user_error(
            f"{printable(str(parent))} (`source.path`) contains splits of a dataset, not classes",
            got=names,
            expected="one split: validation and test images must not be trained on",
            fix=f"{select}, or define one dataset for each of {names}",
        )


def _find_splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each split in a name, and the name without it, numbers and words such as `images`."""
    tokens = [token for token in SEPARATORS.split(name.casefold()) if token]
    for index, token in enumerate(tokens):
        if match := SPLIT.fullmatch(token):
            remainder = (part for part in [*tokens[:index], "*", *tokens[index + 1 :]] if not IGNORED.fullmatch(part))
            yield " ".join(remainder), SPLIT_NAMES[match[1]]


def _is_only(split: Path, folder: Path, counts: Mapping[Path, int]) -> bool:
    """Return whether all images below `folder` are in class folders of a split: one at the top, several if deeper."""
    parents = [path for path in split.parents if folder in (path, *path.parents)]
    return all(counts[path] == 1 for path in parents) and counts[split] >= (1 if split.parent == folder else 2)
