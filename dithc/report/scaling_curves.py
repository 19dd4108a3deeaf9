"""Curves of weak and strong scaling: measured here, published in the paper, or simulated.

A file of another type is an error. Only ratios and units are computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dithc.core.logging import user_error
from dithc.core.measurements import Table, percent, rounded
from dithc.core.units import TERA

Kind = Literal["measured", "published", "simulated"]
Mode = Literal["weak", "strong"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MODES: tuple[Mode, ...] = get_args(Mode)
HEAD = ["Curve", "Same losses", "Ranks", "Nodes", "s per step", "Efficiency", "Exposed s", "Overlap"]
HEAD += ["TFLOP/s", "Linear"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScalingPoint:
    """A rank count on a curve; unknown values are None.

    `efficiency` is relative to the fewest ranks (1 is ideal). `more` has all other values.
    """

    nodes: int
    ranks: int
    seconds: float | None
    efficiency: float | None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScalingCurve:
    """Step time by number of ranks, ascending; `global_batch_size` is the images per step of strong scaling."""

    label: str
    kind: Kind
    model: str
    mode: Mode
    global_batch_size: int | None
    points: tuple[ScalingPoint, ...]

    @property
    def title(self) -> str:
        """Label with model and kind, without repetition."""
        short_name = self.model.removeprefix("DiT-")
        batch = f", batch {self.global_batch_size:,}" if self.global_batch_size and "batch" not in self.label else ""
        suffix = (
            "" if self.label in ("", self.model, short_name) else f" {self.label.removeprefix(self.model).strip(' ,:')}"
        )
        return f"{short_name}{suffix}{batch}" + ("" if self.kind in suffix else f" ({self.kind})")

    @property
    def drawn(self) -> list[ScalingPoint]:
        """Points without oversubscribed ranks. Only the table shows those."""
        return [point for point in self.points if not point.more.get("oversubscribed")]


def parse_curves(content: object, *, origin: str) -> list[ScalingCurve]:
    """Parse curves from a list of mappings with the fields of `ScalingCurve`; `origin` names the file in messages."""
    try:
        if not isinstance(content, list):
            raise ValueError("`curves` is not a list")
        return [_curve(curve) for curve in content]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise user_error(
            f"{origin} has no scaling curves",
            got=f"{type(error).__name__}: {error}",
            expected="the file of `dithc bench scaling --json` or `dithc simulate --json`, with `curves`",
            fix="rerun the command, or leave the file out of --scaling",
        ) from error


def _curve(content: Mapping[str, Any]) -> ScalingCurve:
    if content["kind"] not in KINDS or content["mode"] not in MODES:
        raise ValueError(f"kind {content['kind']!r}, mode {content['mode']!r}")
    points = sorted((_point(point) for point in content["points"]), key=lambda point: point.ranks)
    return ScalingCurve(
        label=str(content["label"]),
        kind=content["kind"],
        model=str(content["model"]),
        mode=content["mode"],
        global_batch_size=content.get("global_batch_size"),
        points=tuple(points),
    )


def _point(content: Mapping[str, Any]) -> ScalingPoint:
    numbers = {key: None if content.get(key) is None else float(content[key]) for key in ("seconds", "efficiency")}
    extras = {key: value for key, value in content.items() if key not in ("nodes", "ranks", *numbers)}
    return ScalingPoint(nodes=int(content["nodes"]), ranks=int(content["ranks"]), **numbers, more=extras)


def add_published(curves: Sequence[ScalingCurve], published: Sequence[ScalingCurve]) -> list[ScalingCurve]:
    """Return curves with the published curves of the same modes.

    Curves of the reference replace published curves in the file of a simulation.
    """
    modes = {curve.mode for curve in curves}
    keys = {(curve.model, curve.mode) for curve in published}
    rest = [curve for curve in curves if curve.kind != "published" or (curve.model, curve.mode) not in keys]
    return [*rest, *(curve for curve in published if curve.mode in modes)]


def points_table(curves: Sequence[ScalingCurve], mode: str) -> Table:
    rows = [_row(curve, point) for curve in curves if curve.mode == mode for point in curve.points]
    return Table(title=f"All points of {mode} scaling", head=HEAD, rows=rows, texts=2)


def _row(curve: ScalingCurve, point: ScalingPoint) -> list[str]:
    extras, comparison = point.more, point.more.get("same_training")
    shared = " (oversubscribed: correctness only)" if extras.get("oversubscribed") else ""
    failed = f" ({extras['status']})" if extras.get("status", "ok") != "ok" else ""
    mad = (extras.get("seconds_spread") or {}).get("mad")
    rates = (extras.get(name) for name in ("flops_per_second", "linear_flops_per_second"))
    return [
        curve.title + shared + failed,
        "" if comparison is None else "yes" if comparison["same"] else "NO",
        *(f"{point.ranks:,}", f"{point.nodes:,}"),
        rounded(point.seconds) + (f" ± {float(format(mad, '.1g')):g}" if mad is not None else ""),
        *(percent(point.efficiency), rounded(extras.get("exposed_seconds")), percent(extras.get("overlap_fraction"))),
        *(rounded(rate and rate / TERA) for rate in rates),
    ]
