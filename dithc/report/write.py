"""The door's one act: manifests in; a page, its numbers as JSON, and its figures as files out."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.config import Experiment
from dithc.log import logger
from dithc.report.collect import collect, gather, smooth
from dithc.report.engine import published
from dithc.report.facts import Curve, DatasetFacts, Facts
from dithc.report.figures import FIGURES, bands, canvas, samples, single, spectra
from dithc.report.page import Pictures, Shown, render, texts
from dithc.report.pictures import FALSE_COLOURS, galleries, measure_spectra, strips
from dithc.report.verdict import last_scored
from dithc.runs import Manifest, outputs
from dithc.sealed import seal

NOT_INLINED = ("samples", "bands")  # the page has larger ones of each data set
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
    sampling: Path | None = None,
    reference: Path | None = None,
    machine: Iterable[str] = (),
    config: Path | None = None,
) -> Facts:
    """Write `out` (HTML), the same name with `.json`, and `figures/*.png` beside it; return the facts.

    The benchmark files are those of `collect`. `reference` None omits the paper's numbers, `config` None the commands.

    Raises:
        UserError: a manifest is missing or unreadable, or the results do not belong together.
    """
    paper = published.read_reference(reference)
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
        sampling=sampling,
        config=config,
    )
    for text in facts.warnings:
        log.warning(text)
    drawn = {name: draw(facts) for name, draw in FIGURES.items()}
    pictures = _pictures(facts, {name: png for name, png in drawn.items() if name not in NOT_INLINED})
    drawn["composites"] = samples.draw_composites(list(_composites(facts, pictures)))
    page = render(facts, paper, pictures)
    contents = {out.parent / "figures" / f"{name}.png": content for name, content in drawn.items()} | {out: page}
    for path, content in contents.items():
        outputs.write(path, content, of=out)
    files = Manifest.entries(out.parent, contents)
    outputs.write(out.with_suffix(".json"), seal({**numbers(facts), "files": files}), of=out)
    return facts


def _pictures(facts: Facts, figures: dict[str, bytes]) -> Pictures:
    """Return the figures of the experiment and of each data set."""
    judged = {run.dataset: item for run in facts.runs if (item := last_scored(facts, run.name))}
    drawn = {dataset.name: list(_drawn(facts, dataset)) for dataset in facts.datasets}
    firsts = {run.name: last_scored(facts, run.name) for run in facts.last_runs}
    return Pictures(
        figures=figures | {one.name: png for shown in drawn.values() for one, png in shown},
        galleries={
            dataset.name: galleries(facts, dataset.name, judged.get(dataset.name)) for dataset in facts.datasets
        },
        drawn={name: [one for one, _ in shown] for name, shown in drawn.items()},
        strips={name: found for name, item in firsts.items() if item and (found := strips(facts, item))},
    )


def _composites(facts: Facts, pictures: Pictures) -> Iterator[list[tuple[NDArray[np.uint8], str, str]]]:
    """Yield titled false-color images of each data set."""
    for dataset in facts.datasets:
        for gallery in pictures.galleries[dataset.name]:
            if gallery.title == FALSE_COLOURS:
                shown = gallery.pictures
                yield [(canvas.of_webp(one.webp), f"{dataset.title}. {one.title}", one.caption) for one in shown]


def _drawn(facts: Facts, dataset: DatasetFacts) -> Iterator[tuple[Shown, bytes]]:
    """Yield figures of a data set: spectra, tile map, band statistics."""
    if measured := measure_spectra(facts, dataset.name):
        text = texts.spectra(dataset, measured)
        caption = (
            f"Of {measured.sides[0].count} real tiles and as many images; percentiles in the units of the data set"
        )
        shown = Shown(name=f"spectra {dataset.name}", title="Spectra", text=text, caption=caption)
        yield shown, spectra.draw_spectra(measured)
    if dataset.tiles_folder is not None:
        caption = "Tiles by split: places over cells of the split, values of each band, examples of every fate with their masks"
        text = texts.tiles(dataset)
        shown = Shown(
            name=f"tiles {dataset.name}", title="Tiles, what was taken and what not", text=text, caption=caption
        )
        yield shown, single.draw_tiles(dataset.tiles_folder, title="", scenes=dataset.scenes_folder)
    if dataset.bands and not dataset.ranges:
        untitled = [replace(dataset, title="")]
        caption = (
            "Bands over the train tiles. Dot: mean; thick: one standard deviation; pale: the range that becomes −1 to 1"
        )
        shown = Shown(name=f"bands {dataset.name}", title="", text=texts.bands(dataset), caption=caption)
        yield shown, bands.draw_bands(untitled)


def numbers(facts: Facts) -> dict[str, Any]:
    """Return the facts as JSON values; curves are thinned to 200 smoothed points."""
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
    """Convert paths to text, and non-finite numbers to null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value
