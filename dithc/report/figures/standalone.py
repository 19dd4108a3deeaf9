"""Single figures of given files: loss of a run, a memory plan, a dataset of tiles."""

from pathlib import Path

from dithc.core.logging import user_error
from dithc.report.collect import read_curve
from dithc.report.figures import theme
from dithc.report.figures.benchmarks import draw_timeline, read_timeline
from dithc.report.figures.canvas import render_png
from dithc.report.figures.tiles import read_tiles, tiles_figure
from dithc.report.figures.training import draw_curves


def draw_loss(metrics: Path, *, store: Path | None = None) -> bytes:
    """Return a PNG of the loss curve in a metrics.jsonl (or its folder).

    Raises:
        UserError: the file has no step with a loss.
    """
    curve = read_curve(metrics.parent.name, metrics=metrics, store=store, global_batch_size=1, segments=[])
    if curve is None:
        raise user_error(
            f"{metrics} has no loss to draw",
            got="no line with `step` and `loss`",
            expected="metrics.jsonl of a run",
            fix="pass a run with at least one step",
        )
    return render_png(lambda: draw_curves([(curve, theme.PALETTE[0])]))


def draw_plan(path: Path) -> bytes:
    """Return a PNG of both memory tiers over a step, from an automem.json or `dithc bench automem --json`.

    Raises:
        UserError: the file has no plan.
    """
    timeline = read_timeline(path)
    return render_png(lambda: draw_timeline(timeline))


def draw_tiles(folder: Path, *, title: str, scenes: Path | None = None) -> bytes:
    """Return a PNG of a folder of the stage `tiles`: locations, values, accepted and rejected tiles.

    Rejected tiles and masks require the folder of scenes.

    Raises:
        UserError: a file is missing or damaged.
    """
    tiles = read_tiles(folder, title=title, scenes=scenes)
    return render_png(lambda: tiles_figure(tiles))
