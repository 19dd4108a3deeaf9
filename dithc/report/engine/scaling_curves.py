"""Weak and strong scaling as curves: measured here, published in the paper, simulated; each says which it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dithc.log import problem
from dithc.report.words import ABSENT, short

Kind = Literal["measured", "published", "simulated"]
Mode = Literal["weak", "strong"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MODES: tuple[Mode, ...] = get_args(Mode)
TERA = 1e12
HEAD = (
    "Curve",
    "Model",
    "Ranks",
    "Nodes",
    "s a step",
    "Efficiency",
    "Exposed s",
    "Overlap",
    "TFLOP/s",
    "linear",
    "Together over alone",
    "Same training",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScalingPoint:
    """A rank count on a curve; unknown values are None.

    `efficiency` is relative to the fewest ranks (1 is ideal); `more` has all other values.
    """

    nodes: int
    ranks: int
    seconds: float | None
    efficiency: float | None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScalingCurve:
    """Step time by number of ranks, ascending; `global_batch` is the images per step of strong scaling."""

    label: str
    kind: Kind
    model: str
    mode: Mode
    global_batch: int | None
    points: tuple[ScalingPoint, ...]

    @property
    def title(self) -> str:
        """Return the label with model and kind, without repetition."""
        short_name = self.model.removeprefix("DiT-")
        batch = f", batch {self.global_batch:,}" if self.global_batch and "batch" not in self.label else ""
        own = (
            "" if self.label in ("", self.model, short_name) else f" {self.label.removeprefix(self.model).strip(' ,:')}"
        )
        return f"{short_name}{own}{batch}" + ("" if self.kind in own else f" ({self.kind})")

    @property
    def drawn(self) -> list[ScalingPoint]:
        """Return the points without oversubscribed ranks, which only the table shows."""
        return [point for point in self.points if not point.more.get("oversubscribed")]


def curves_of(content: object, *, origin: str) -> list[ScalingCurve]:
    """Parse curves from a list of mappings with the fields of `ScalingCurve`; `origin` names the file in messages.

    Raises:
        UserError: the content has another form.
    """
    try:
        if not isinstance(content, list):
            raise ValueError("no list of curves")
        return [_curve(one) for one in content]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise problem(
            f"{origin} has no curves of scaling",
            got=f"{type(error).__name__}: {error}",
            expected="what `dithc bench scaling --json` or `dithc simulate --json` wrote, with `curves`",
            fix="make it again, or leave it out of --scaling",
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
        global_batch=content.get("global_batch"),
        points=tuple(points),
    )


def _point(content: Mapping[str, Any]) -> ScalingPoint:
    known = {key: None if content.get(key) is None else float(content[key]) for key in ("seconds", "efficiency")}
    more = {key: value for key, value in content.items() if key not in ("nodes", "ranks", *known)}
    return ScalingPoint(nodes=int(content["nodes"]), ranks=int(content["ranks"]), **known, more=more)


def together(ours: Sequence[ScalingCurve], published: Sequence[ScalingCurve]) -> list[ScalingCurve]:
    """Return our curves and the published ones of the same modes; the reference wins over published curves of a simulation."""
    modes = {one.mode for one in ours}
    known = {(one.model, one.mode) for one in published}
    kept = [one for one in ours if one.kind != "published" or (one.model, one.mode) not in known]
    return [*kept, *(one for one in published if one.mode in modes)]


def scaling_parts(curves: Sequence[ScalingCurve]) -> dict[str, Any]:
    """Return the table rows by mode; empty without curves."""
    return {
        "head": list(HEAD),
        "rows": {
            mode: [_row(one, point) for one in curves if one.mode == mode for point in one.points] for mode in MODES
        },
    }


def _row(curve: ScalingCurve, point: ScalingPoint) -> list[str]:
    more = point.more
    pair, same = more.get("without_communication"), more.get("same_training")
    mad = (more.get("seconds_spread") or {}).get("mad")
    shared = " (shared cores: correctness only)" if more.get("oversubscribed") else ""
    failed = f" ({more['status']})" if more.get("status", "ok") != "ok" else ""
    return [
        curve.title + shared + failed,
        curve.model.removeprefix("DiT-"),
        f"{point.ranks:,}",
        f"{point.nodes:,}",
        _number(point.seconds) + (f" ± {float(format(mad, '.1g')):g}" if mad is not None else ""),
        _percent(point.efficiency),
        _number(more.get("exposed_seconds")),
        _percent(more.get("overlap_fraction")),
        _number(more.get("flops_per_second"), over=TERA),
        _number(more.get("linear_flops_per_second"), over=TERA),
        _number(pair["ratio"]["median"]) if pair else ABSENT,
        ABSENT if same is None else "yes" if same["same"] else "NO",
    ]


def _number(value: float | None, *, over: float = 1.0) -> str:
    return ABSENT if value is None else short(float(f"{value / over:.3g}"))


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.1f} %"
