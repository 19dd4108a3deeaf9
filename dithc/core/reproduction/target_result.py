"""Document of a paper target: frozen records that are validated when built and when read, and their JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.core.logging import user_error

TARGETS = ("table1", "table2", "table3", "table4", "fig7", "fig8", "fig9", "fig10", "fig11", "sec56")
Status = Literal["measured", "simulated", "published", "skipped", "out of memory"]
Kind = Literal["measured", "simulated", "published"]
Scale = Literal["ci", "node", "paper"]
STATUSES: tuple[str, ...] = get_args(Status)
VALUED = ("measured", "simulated")
REASONED = ("simulated", "skipped", "out of memory")


def _check_choice(owner: str, name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{owner}: {name} is {value!r}, expected one of: {', '.join(choices)}")


def _check_finite(owner: str, **numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{owner}: {name} is {value}, expected a finite number or null")


@dataclass(frozen=True, kw_only=True)
class ResultCell:
    """One number of a target, at a row and column of its table or figure."""

    id: str  # unique within the target; the name of its file
    row: str
    column: str
    quantity: str  # such as `seconds per iteration`
    status: Status
    unit: str = ""  # such as `s`, `GB`, `x`
    value: float | None = None  # None unless measured or simulated
    low: float | None = None  # `low` and `high` bound the spread of `value`
    high: float | None = None
    published: float | None = None  # number printed in the paper
    reason: str = ""  # of a skipped or out-of-memory cell; assumption of a simulation
    predicted_seconds: float | None = None  # wall time predicted before the start
    command: str = ""  # measures this cell alone
    file: str = ""  # source of the number, relative to the page
    digest: str = ""

    def __post_init__(self) -> None:
        owner = f"cell {self.id}"
        _check_choice(owner, "status", self.status, STATUSES)
        _check_finite(owner, value=self.value, low=self.low, high=self.high, published=self.published)
        if (self.value is not None) != (self.status in VALUED):
            raise ValueError(f"{owner}: status {self.status} contradicts value {self.value}")
        if self.status in REASONED and not self.reason:
            raise ValueError(f"{owner}: status {self.status} requires a reason")
        if self.status in VALUED and not self.file:
            raise ValueError(f"{owner}: status {self.status} requires a file")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"{owner}: low {self.low} is above high {self.high}")

    @property
    def ratio(self) -> float | None:
        """Value over published; None if one is missing."""
        return self.value / self.published if self.value is not None and self.published else None


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve of a figure."""

    label: str
    kind: Kind  # only measured curves are drawn solid
    x: tuple[float, ...]
    y: tuple[float | None, ...]  # None marks a missing point
    smoothed: tuple[float | None, ...] = ()  # smoothed y, or empty
    x_label: str = ""
    y_label: str = ""
    file: str = ""  # source of the points, relative to the page

    def __post_init__(self) -> None:
        owner = f"series {self.label!r}"
        _check_choice(owner, "kind", self.kind, get_args(Kind))
        for name in ("x", "y", "smoothed"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            if len(values) != len(self.x) and (values or name == "y"):
                raise ValueError(f"{owner}: {len(values)} numbers of {name}, {len(self.x)} of x")
            for value in values:
                _check_finite(owner, **{name: value})


@dataclass(frozen=True, kw_only=True)
class ResultImage:
    """One image of a figure; `path` is relative to the page, `alt` is its text alternative."""

    label: str
    path: str
    caption: str = ""
    alt: str = ""


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """A reproduced table or figure of the paper, one of `TARGETS`."""

    target: str
    title: str
    paper: str  # heading in the paper, such as `Table 2`
    scale: Scale  # minutes on a small machine, one node in a night, or the published settings
    machine: Mapping[str, Any] = field(default_factory=dict)  # name, cores, memory_gib, isa and more
    versions: Mapping[str, str] = field(default_factory=dict)  # of dithc, torch, Python, and the commit
    command: str = ""
    digest: str = ""  # of settings and inputs
    cells: tuple[ResultCell, ...] = ()
    series: tuple[Series, ...] = ()
    images: tuple[ResultImage, ...] = ()
    notes: tuple[str, ...] = ()  # differences from the setting of the paper, shown on the figure

    def __post_init__(self) -> None:
        _check_choice("document", "target", self.target, TARGETS)
        _check_choice(self.target, "scale", self.scale, get_args(Scale))
        for name in ("cells", "series", "images", "notes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        ids = [cell.id for cell in self.cells]
        if duplicates := {name for name in ids if ids.count(name) > 1}:
            raise ValueError(f"{self.target}: cells of the same id: {', '.join(sorted(duplicates))}")

    def to_json(self) -> str:
        """Return the checksummed text; cells include their ratio."""
        content = asdict(self)
        for record, cell in zip(content["cells"], self.cells, strict=True):
            record["ratio"] = cell.ratio
        return dump_checksummed(content)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a document. Raise ValueError if a byte was altered, or if the content has another form."""
        content = load_checksummed(text)
        for name, kind in (("cells", ResultCell), ("series", Series), ("images", ResultImage)):
            content[name] = [_build(kind, part) for part in content.get(name, ())]
        document: Self = _build(cls, content)
        return document

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a document from a file, or raise UserError."""
        try:
            return cls.from_json(require_regular_file(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise user_error(
                f"the document of a target cannot be read from {path}",
                got=f"{type(error).__name__}: {error}",
                expected="a JSON document of `dithc reproduce`",
                fix="remove it and rebuild the target: existing cells are kept",
            ) from error


def _build(kind: type[Any], content: Mapping[str, Any]) -> Any:
    """Build a record of a document; the ratio of a cell is computed instead of read."""
    if unknown := sorted(content.keys() - {item.name for item in fields(kind)} - {"ratio"}):
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown)}")
    return kind(**{name: value for name, value in content.items() if name != "ratio"})
