"""Checks of class folders: none contains another, and they are not the splits of a dataset."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dithc.core.logging import UserError, get_logger, user_error
from dithc.data.file_checks import printable

KINDS = {
    "train": ("train", "training", "trn", "trainval"),
    "val": ("val", "valid", "validation", "minival"),
    "dev": ("dev",),
    "eval": ("eval", "evaluation"),
    "test": ("test", "testing", "tst"),
    "holdout": ("holdout", "heldout"),
    "unlabeled": ("unlabeled", "unlabelled"),
}
"""Kinds of splits, in the order in which the fix prefers them, and their names."""
WORDS = {word: kind for kind, words in KINDS.items() for word in words}
WEAK = {"unlabeled"}
"""Kinds that are also class names, next to a class of trains. They count only if every folder is a split."""
NOISE = r"set|split|data|images?|imgs?|part|shard"
SPLIT, DROPPED = re.compile(rf"({'|'.join(WORDS)})(?:{NOISE})*"), re.compile(rf"(?:{NOISE}|of|tar|parquet)+")
BETWEEN, HELD_OUT = re.compile(r"[-=_.\s\d]+"), re.compile(r"\b(hold|held)[-_. ]out")
log = get_logger(__name__)


def check_apart(folder: Path, folders: list[Path]) -> None:
    """Raise UserError if links nest class folders in each other or around the source: images would have two labels."""
    owners: dict[Path, Path] = {}
    places = [(path, path.resolve()) for path in folders]
    for path, place in places:
        if owners.setdefault(place, path) != path:
            raise _within(path, owners[place])
    for path, place in [(folder, folder.resolve()), *places]:
        around = next((owners[one] for one in place.parents if one in owners), owners.get(place, path))
        if around != path:
            raise _within(path, around)


def _within(inner: Path, outer: Path) -> UserError:
    return user_error(
        f"the content of {printable(str(inner))} is also in another class folder",
        got=f"{printable(str(outer))}, which leads to {printable(str(outer.resolve()))}",
        expected="separate class folders, so that each image has one label",
        fix="remove the link, or link a folder of one class",
    )


def check_splits(folder: Path, paths: Iterable[Path], *, one: bool = False) -> None:
    """Raise UserError for images of several splits below `folder`, which would become classes or be trained on.

    This applies to folders or archives with one parent whose names differ in the split, and to a folder of classes as
    the only content of `folder`. A single split name next to other names is a class, such as `train` of CIFAR-100. If
    all images are `one` class, the log names the splits instead.
    """
    places = set[Path]()
    for place in {path.parent for path in paths}:
        places.update(one_place for one_place in (place, *place.parents) if folder in one_place.parents)
    inside = Counter(place.parent for place in places)
    groups = defaultdict[tuple[Path, str], dict[str, list[Path]]](dict)
    for place in sorted(places):
        for frame, kind in _splits(place.name):
            groups[place.parent, frame].setdefault(kind, []).append(place)
    for (parent, _), splits in groups.items():
        ordered = [splits[kind][0] for kind in KINDS if kind in splits]
        chosen, name = ordered[0], printable(ordered[0].name)
        is_all = sum(map(len, splits.values())) == inside[parent]
        several = len(ordered if is_all else splits.keys() - WEAK) > 1
        if not several and (one or not is_all or not chosen.is_dir() or not _is_alone(chosen, folder, inside)):
            continue
        names = ", ".join(printable(place.name) for place in ordered)
        if one:
            log.warning(f"{folder}: the splits {names} become one dataset")
            continue
        pattern = f"*/{name}/*" if chosen.is_dir() else re.sub("[0-9]+", "*", name)
        select = f"set `source.include: ['{pattern}']`"
        if chosen.is_dir() and (parent == folder or sum(place.name == chosen.name for place in places) == 1):
            select = f"set `source.path: {printable(str(chosen))}`"
        raise user_error(
            f"{printable(str(parent))} (`source.path`) contains splits of a dataset, not classes",
            got=names,
            expected="one split: validation and test images must not be trained on",
            fix=f"{select}, or define one dataset for each of {names}",
        )


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each split in a name, and the name without it, numbers and words such as `images`."""
    words = [word for word in BETWEEN.split(HELD_OUT.sub("holdout", name.casefold())) if word]
    for index, word in enumerate(words):
        if match := SPLIT.fullmatch(word):
            rest = (other for other in [*words[:index], "*", *words[index + 1 :]] if not DROPPED.fullmatch(other))
            yield " ".join(rest), WORDS[match[1]]


def _is_alone(split: Path, folder: Path, inside: Mapping[Path, int]) -> bool:
    """Return whether all images below `folder` are in class folders of a split: one at the top, several if deeper."""
    above = [place for place in split.parents if folder in (place, *place.parents)]
    return all(inside[place] == 1 for place in above) and inside[split] >= (1 if split.parent == folder else 2)
