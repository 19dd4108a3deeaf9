"""Figure 7: losses on several platforms; raw faint, smoothed strong; how far each is from the reference, over seeds' noise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.papers import Document, Series
from dithc.papers.numbers import rounded, short
from dithc.report.collect import smooth
from dithc.report.figures import canvas, theme
from dithc.report.paper.frame import Frame, cut, in_order, nothing

LOSS_INCHES, DEVIATION_INCHES = 3.3, 2.1
SEED = ", seed"
REFERENCE = "reference"
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Platform:
    """Curves of all seeds of a platform; `group` names comparable platforms, such as those of one batch, and may be empty."""

    name: str
    curves: list[Series]
    group: str = ""

    @property
    def steps(self) -> Numbers:
        """Return the steps of its first curve."""
        return np.asarray(self.curves[0].x, float)

    @property
    def smoothed(self) -> Numbers:
        """Return (seeds, steps) of the curves with the steps of the first."""
        return np.stack([smoothed(one) for one in self.curves if one.x == self.curves[0].x])


def values(numbers: Any) -> Numbers:
    """Return numbers, NaN where missing."""
    return np.array([np.nan if value is None else value for value in numbers], float)


def smoothed(series: Series) -> Numbers:
    """Return the given smoothed curve, or smooth it."""
    return values(series.smoothed) if series.smoothed else smooth(values(series.y))


def platforms_of(document: Document) -> list[Platform]:
    """Parse labels `PLATFORM[, GROUP], seed N`; the reference comes first."""
    names = in_order(one.label.partition(SEED)[0] for one in document.series if one.kind != "published" and one.x)
    names.sort(key=lambda name: not name.startswith(REFERENCE))
    found = []
    for name in names:
        curves = [one for one in document.series if one.x and one.label.partition(SEED)[0] == name]
        platform, _, group = name.partition(", ")
        found.append(Platform(name=platform, group=group, curves=curves))
    return found


def groups_of(document: Document) -> list[list[Platform]]:
    """Group comparable platforms, the largest group first."""
    platforms = platforms_of(document)
    names = in_order(one.group for one in platforms)
    groups = [[one for one in platforms if one.group == name] for name in names]
    return sorted(groups, key=lambda group: -len(group))


def noise_of(platform: Platform) -> Numbers | None:
    """Return the largest deviation of a seed from the mean at each step; None for one seed."""
    curves = platform.smoothed
    if len(curves) < 2:
        return None
    found: Numbers = np.abs(curves - curves.mean(axis=0)).max(axis=0)
    return found


def deviation_of(platform: Platform, reference: Platform) -> Numbers | None:
    """Return mean smoothed loss minus the reference's over common seeds; None if steps differ."""
    theirs = {one.label.partition(SEED)[2]: one for one in reference.curves}
    pairs = [(one, theirs[seed]) for one in platform.curves if (seed := one.label.partition(SEED)[2]) in theirs]
    alike = [smoothed(one) - smoothed(other) for one, other in pairs if one.x == other.x]
    return np.asarray(np.mean(alike, axis=0), float) if alike else None


def draw_losses(document: Document, frame: Frame, folder: Path) -> Any:
    """Draw losses above deviations from the reference."""
    groups = groups_of(document)
    if not groups:
        figure, _, grid = canvas.framed([1.2], top=frame.top, bottom=frame.bottom)
        nothing(grid[0][0], "no loss curve has been measured")
        return figure
    figure, _, grid = canvas.framed([LOSS_INCHES, DEVIATION_INCHES] * len(groups), top=frame.top, bottom=frame.bottom)
    names = in_order(one.name for group in groups for one in group)
    colours = {name: theme.PALETTE[place % len(theme.PALETTE)] for place, name in enumerate(names)}
    for place, group in enumerate(groups):
        (loss,), (deviation,) = grid[2 * place : 2 * place + 2]
        printed = [one for one in document.series if one.kind == "published" and one.x] if place == 0 else []
        _draw_group(loss, deviation, group, printed, colours)
    return figure


def _draw_group(
    loss: Any, deviation: Any, platforms: list[Platform], printed: list[Series], colours: dict[str, str]
) -> None:
    for platform in platforms:
        _losses(loss, platform, colours[platform.name])
    for series in printed:
        if series.x:
            loss.plot(
                series.x,
                values(series.y),
                marker="x",
                linestyle="",
                markersize=7,
                markeredgewidth=1.8,
                color=theme.INK,
                label=cut(series.label),
                zorder=6,
            )
    of_group = f"{platforms[0].group}. " if platforms[0].group else ""
    loss.set_title(
        f"{of_group[:1].upper()}{of_group[1:]}Loss: raw faint, smoothed strong; band: least to greatest of the seeds"
    )
    loss.set_ylabel("loss")
    loss.set_yscale("log")
    locator: Any = loss.yaxis.get_major_locator()
    locator.set_params(subs=(1, 2, 5))
    loss.yaxis.set_major_formatter(lambda value, _: short(value))
    loss.minorticks_off()
    steps = [step for one in platforms for step in one.steps]
    loss.set_xlim(min(steps), max(*steps, min(steps) + 1))
    _deviations(deviation, platforms, colours)
    deviation.set_xlim(loss.get_xlim())
    for axis in (loss, deviation):
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelcolor=theme.INK, fontsize=8.5)


def _losses(axis: Any, platform: Platform, colour: str) -> None:
    is_first = platform.name.startswith(REFERENCE)
    for one in platform.curves:
        axis.plot(one.x, values(one.y), color=colour, alpha=0.2, linewidth=0.7)
    curves = platform.smoothed
    if len(curves) > 1:
        axis.fill_between(platform.steps, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.14, linewidth=0)
    is_hollow = platform.curves[0].kind == "simulated"
    look: dict[str, Any] = {"linewidth": 3.0 if is_first else 1.6, "alpha": 0.55 if is_first else 1.0}
    style = (0, (4, 2)) if is_hollow else "-"
    axis.plot(
        platform.steps,
        curves.mean(axis=0),
        color=colour,
        label=f"{cut(platform.name, 26)} ({len(curves)} seed{'s' * (len(curves) > 1)})",
        linestyle=style,
        **look,
    )


def _deviations(axis: Any, platforms: list[Platform], colours: dict[str, str]) -> None:
    reference, noise = platforms[0], noise_of(platforms[0])
    axis.axhline(0, color=theme.MUTED, linewidth=0.9)
    if noise is not None:
        axis.fill_between(
            reference.steps,
            -noise,
            noise,
            color=theme.MUTED,
            alpha=0.22,
            linewidth=0,
            label=f"seeds of {cut(reference.name, 20)}: ± {rounded(float(np.nanmax(noise)), digits=2)}",
        )
    is_any = False
    for platform in platforms[1:]:
        found = deviation_of(platform, reference)
        if found is None:
            axis.plot([], [], linestyle="", label=f"{cut(platform.name, 20)}: other steps")
            continue
        is_any = True
        most = float(np.nanmax(np.abs(found)))
        axis.plot(
            platform.steps,
            found,
            color=colours[platform.name],
            linewidth=1.6,
            label=f"{cut(platform.name, 20)}: at most {rounded(most, digits=2)}",
        )
    if not is_any:
        axis.plot([], [], linestyle="", label="nothing to compare")
    axis.set_title(f"Deviation of the smoothed loss from {cut(reference.name, 24)}, same seeds")
    axis.set_xlabel("step")
    axis.set_ylabel("difference")
