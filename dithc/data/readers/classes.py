"""Checks of class folders: none contains another, and they are not the splits of a dataset."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from dithc.data.files import printable
from dithc.log import UserError, logger, problem

WORDS = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}
SPLIT = re.compile(
    rf"(?:(?P<before>.*)[-_. ])?(?P<word>{'|'.join(WORDS)})"
    r"(?:[-_. ]?(?:\d+|of|set|split|data|images?|imgs?|part|shard|tar|parquet))*"
)
log = logger(__name__)


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
    return problem(
        f"the content of {printable(str(inner))} is in another class folder too",
        got=f"{printable(str(outer))}, which leads to {printable(str(outer.resolve()))}",
        expected="separate class folders, so that each image has one label",
        remedy="remove the link, or link a folder of one class",
    )


def check_splits(folder: Path, paths: Iterable[Path], *, one: bool = False) -> None:
    """Raise UserError for images of several splits below `folder`: each would become a class, or validation images be trained on.

    This applies to folders or archives with one parent that are named as splits, and to a folder of classes as the only
    class. If all images are `one` class, the log names the splits instead.
    """
    places = set[Path]()
    for place in {path.parent for path in paths}:
        places.update(one_place for one_place in (place, *place.parents) if folder in one_place.parents)
    groups = defaultdict[tuple[Path, str | None], dict[str, Path]](dict)
    for place in sorted(places):
        if match := SPLIT.fullmatch(place.name.casefold()):
            groups[place.parent, match["before"]].setdefault(WORDS[match["word"]], place)
    tops = {place for place in places if place.parent == folder}
    for (parent, _), splits in groups.items():
        is_only = parent == folder and {*splits.values()} == tops and any(place.is_dir() for place in tops)
        if len(splits) < 2 and not (is_only and any(place.parent in tops for place in places)):
            continue
        ordered = [splits[kind] for kind in dict.fromkeys(WORDS.values()) if kind in splits]
        names = ", ".join(printable(place.name) for place in ordered)
        if one:
            log.warning(f"{folder}: the splits {names} become one dataset")
            continue
        chosen, name = ordered[0], printable(ordered[0].name)
        pattern = f"*/{name}/*" if chosen.is_dir() else re.sub("[0-9]+", "*", name)
        select = f"set `source.include: ['{pattern}']`"
        if chosen.is_dir() and len(groups) == 1:
            select = f"set `source.path: {printable(str(chosen))}`"
        raise problem(
            f"{printable(str(parent))} (`source.path`) contains splits of a dataset, not classes",
            got=names,
            expected="one split: validation and test images must not be trained on",
            remedy=f"{select}, or define one dataset for each of {names}",
        )
