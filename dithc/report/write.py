"""The door's one act: manifests in; a page, its numbers as JSON, and its figures as files out."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dithc.config import Experiment
from dithc.log import logger
from dithc.report import figures
from dithc.report.collect import collect
from dithc.report.curves import Curve, smooth
from dithc.report.facts import Facts
from dithc.report.gather import gather
from dithc.report.page import render
from dithc.report.pixels_figure import draw_pixels
from dithc.report.reference import read_reference
from dithc.report.scaling_figure import draw_scaling
from dithc.report.stepwise_figure import draw_stepwise
from dithc.report.theme import DARK, LIGHT, Theme
from dithc.report.tiles_figure import draw_tiles
from dithc.report.timeline_figure import draw_memory
from dithc.runs import Manifest, atomic_write
from dithc.sealed import seal

FIGURES: dict[str, Callable[[Facts, Theme], bytes]] = {
    "samples": figures.draw_samples,
    "fid": figures.draw_fid,
    "loss": figures.draw_loss,
    "throughput": figures.draw_throughput,
    "bands": lambda facts, theme: figures.draw_bands(facts.datasets, theme),
    "stages": figures.draw_stages,
    "weak_scaling": partial(draw_scaling, mode="weak"),
    "strong_scaling": partial(draw_scaling, mode="strong"),
    "stepwise": draw_stepwise,
    "memory": draw_memory,
    "pixels": draw_pixels,
}  # each is written as figures/<name>.png beside the page, whatever was run
INLINED = ("fid", "loss", "throughput", "stages", "weak_scaling", "strong_scaling", "stepwise", "memory", "pixels")
LARGE_SIDE, SMALL_SIDE = 720, 384  # pixels of a grid beside others, and of one at the side of a text
CURVE_POINTS = 200
log = logger(__name__)


def write_report(
    experiment: Experiment,
    manifests: Iterable[Path],
    *,
    out: Path,
    bench: Path | None = None,
    strategies: Path | None = None,
    scaling: Iterable[Path] = (),
    stepwise: Path | None = None,
    automem: Path | None = None,
    reference: Path | None = None,
    machine: Iterable[str] = (),
) -> Facts:
    """Writes `out` (HTML), the same name with `.json`, and `figures/*.png` beside it.

    Args:
        experiment: the configuration the results belong to.
        manifests: manifests of every stage that was run.
        out: the page.
        bench: JSON of the step bench, None where it was not run.
        strategies: JSON of the comparison of strategies, None where it was not run.
        scaling: JSON files of measured and of simulated scaling.
        stepwise: JSON of the training by stages, None where it was not run.
        automem: JSON of what AutoMem gives, None where it was not measured.
        reference: the paper's numbers, None to leave them out.
        machine: lines that describe the machine.

    Returns:
        What the report says.

    Raises:
        UserError: a manifest is missing or unreadable, or the results do not belong together.
    """
    paper = read_reference(reference)
    results = gather(experiment, manifests)
    facts = collect(
        experiment,
        results,
        paper,
        bench=bench,
        machine=list(machine),
        strategies=strategies,
        scaling=scaling,
        stepwise=stepwise,
        automem=automem,
    )
    for text in facts.warnings:
        log.warning(text)
    drawn = {name: draw(facts, LIGHT) for name, draw in FIGURES.items()}
    inlined = {name: (drawn[name], FIGURES[name](facts, DARK)) for name in INLINED}
    for dataset in facts.datasets:
        untitled = [replace(dataset, title="")]
        inlined[f"bands {dataset.name}"] = (
            figures.draw_bands(untitled, LIGHT, columns=1),
            figures.draw_bands(untitled, DARK, columns=1),
        )
    page = render(facts, paper, figures=inlined, pictures=_pictures(facts))
    for name, content in drawn.items():
        atomic_write(out.parent / "figures" / f"{name}.png", content)
    atomic_write(out, page)
    files = Manifest.entries(out.parent, [out, *(out.parent / "figures" / f"{name}.png" for name in drawn)])
    atomic_write(out.with_suffix(".json"), seal({**numbers(facts), "files": files}))
    return facts


def _pictures(facts: Facts) -> dict[str, bytes]:
    """The grids, no larger than they are shown, and of tiles that were measured by split their places, values and fates."""
    wanted: dict[str, tuple[Path | None, int]] = {}
    for dataset in facts.datasets:
        wanted[f"real {dataset.name}"] = (dataset.grid, LARGE_SIDE)
        wanted[f"tiles {dataset.name}"] = (dataset.grid, SMALL_SIDE)
        wanted[f"codec {dataset.codec.name}"] = (dataset.codec.grid, LARGE_SIDE)
        wanted[f"codec bands {dataset.codec.name}"] = (dataset.codec.bands, 2 * LARGE_SIDE)
    for item in facts.evaluations:
        wanted[f"samples {item.name}"] = (item.grid, LARGE_SIDE)
    pictures = {name: figures.thumbnail(path, max_side=side) for name, (path, side) in wanted.items() if path}
    for dataset in facts.datasets:
        if dataset.tiles_folder is not None and dataset.ranges:
            drawn = draw_tiles(dataset.tiles_folder, title=dataset.title, scenes=dataset.scenes_folder)
            pictures[f"places {dataset.name}"] = drawn
    return pictures


def numbers(facts: Facts) -> dict[str, Any]:
    """All the report says as JSON values; curves are thinned to 200 smoothed points."""
    thin = replace(
        facts,
        runs=[replace(run, curve=None) for run in facts.runs],
        evaluations=[replace(item, curves=None) for item in facts.evaluations],
    )
    content: dict[str, Any] = asdict(thin)
    for run, record in zip(facts.runs, content["runs"], strict=True):
        record["curve"] = _thinned(run.curve) if run.curve else None
    content |= {"seconds": facts.seconds, "measure": facts.measure}
    return dict(_plain(content))


def _thinned(curve: Curve) -> dict[str, Any]:
    places = np.unique(np.linspace(0, len(curve.steps) - 1, CURVE_POINTS).round().astype(int))
    measured = np.flatnonzero(np.isfinite(curve.val_loss))
    return {
        "val_loss": {
            int(step): value for step, value in zip(curve.steps[measured], curve.val_loss[measured], strict=True)
        },
        "step": curve.steps[places].astype(int).tolist(),
        "loss_smoothed": smooth(curve.loss)[places].tolist(),
        "images_per_second": smooth(curve.images_per_second)[places].tolist(),
    }


def _plain(value: Any) -> Any:
    """Paths as text, and numbers that JSON has no word for as null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value
