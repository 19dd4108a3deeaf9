"""Report of an experiment: manifests in; a page, its numbers as JSON, and its figures as files out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dithc.config import ExperimentConfig
from dithc.core.artifacts import Manifest, outputs
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import get_logger
from dithc.report.assessment import last_scored
from dithc.report.collect import collect_records, gather_manifests, smooth
from dithc.report.figures import FIGURES, canvas, samples, spectra, standalone
from dithc.report.galleries import FALSE_COLORS, galleries, measure_spectra, preview_rows, restoration_gallery
from dithc.report.html import DatasetFigure, PageImages, alt_text, render
from dithc.report.records import Curve, DatasetRecord, ReportRecords

NOT_INLINED = "samples"  # the page has larger mosaics of each dataset
CURVE_POINTS = 200
log = get_logger(__name__)


def write_report(
    experiment: ExperimentConfig,
    manifests: Iterable[Path],
    *,
    out: Path,
    benches: Mapping[str, Path | None] | None = None,
    scaling: Iterable[Path] = (),
    machine: Iterable[str] = (),
    config: Path | None = None,
) -> ReportRecords:
    """Write `out` (HTML), its numbers as `.json`, and `figures/*.png` next to it; return the records.

    Args:
        benches: JSON files of benchmarks by kind (step, strategies, stepwise, automem); None if not run.
        scaling: JSON files of measured or simulated scaling.
        machine: description of this machine in lines.
        config: configuration file for commands in the report; None omits them.

    Raises:
        UserError: a manifest is missing or unreadable, or the results do not belong together.
    """
    results = gather_manifests(experiment, manifests)
    records = collect_records(experiment, results, benches=benches, scaling=scaling, machine=machine, config=config)
    for text in records.warnings:
        log.warning(text)
    figures = {name: canvas.render_png(partial(draw, records)) for name, draw in FIGURES.items()}
    images = _page_images(records, {name: png for name, png in figures.items() if name != NOT_INLINED})
    figures["composites"] = canvas.render_png(lambda: samples.draw_composites(list(_composites(records, images))))
    page = render(records, images)
    contents = {out.parent / "figures" / f"{name}.png": content for name, content in figures.items()} | {out: page}
    for path, content in contents.items():
        outputs.write(path, content, of=out)
    files = Manifest.entries(out.parent, contents)
    outputs.write(out.with_suffix(".json"), dump_checksummed({**numbers(records), "files": files}), of=out)
    return records


def _page_images(records: ReportRecords, figures: dict[str, bytes]) -> PageImages:
    scored = {run.name: last_scored(records, run.name) for run in records.runs}
    primary = {run.dataset: item for run in records.runs if (item := scored[run.name])}
    dataset_figures = {dataset.name: list(_dataset_figures(records, dataset)) for dataset in records.datasets}
    firsts = {run.name: scored[run.name] for run in records.last_runs}
    return PageImages(
        figures=figures | {figure.name: png for pairs in dataset_figures.values() for figure, png in pairs},
        galleries={name: galleries(records, name, primary.get(name)) for name in dataset_figures},
        drawn={name: [figure for figure, _ in pairs] for name, pairs in dataset_figures.items()},
        strips={name: strip for name, item in firsts.items() if item and (strip := preview_rows(records, item))},
        restorations={
            item.name: gallery for item in records.restorations if (gallery := restoration_gallery(records, item))
        },
    )


def _composites(records: ReportRecords, images: PageImages) -> Iterator[list[tuple[NDArray[np.uint8], str, str]]]:
    """Yield titled false-color images of each dataset."""
    for dataset in records.datasets:
        for gallery in images.galleries[dataset.name]:
            if gallery.title == FALSE_COLORS:
                yield [
                    (canvas.read_webp(mosaic.webp), f"{dataset.title}. {mosaic.title}", mosaic.caption)
                    for mosaic in gallery.pictures
                ]


def _dataset_figures(records: ReportRecords, dataset: DatasetRecord) -> Iterator[tuple[DatasetFigure, bytes]]:
    """Yield figures of a dataset: spectra and tile map."""
    if measured := measure_spectra(records, dataset.name):
        text = alt_text.spectra(dataset, measured)
        count = measured.sides[0].count
        caption = f"{count} real tiles and as many generated images; percentiles in the units of the dataset"
        figure = DatasetFigure(name=f"spectra {dataset.name}", title="Spectra", text=text, caption=caption)
        yield figure, canvas.render_png(partial(spectra.draw_spectra, measured))
    if dataset.tiles_folder is not None:
        caption = (
            "Tiles by split: locations over cells of the split, values of each band, examples of each fate with masks"
        )
        text = alt_text.tiles(dataset)
        figure = DatasetFigure(
            name=f"tiles {dataset.name}", title="Accepted and rejected tiles", text=text, caption=caption
        )
        yield figure, standalone.draw_tiles(dataset.tiles_folder, title="", scenes=dataset.scenes_folder)


def numbers(records: ReportRecords) -> dict[str, Any]:
    """Return the records as JSON values; curves are thinned to 200 smoothed points."""
    reduced = replace(
        records,
        runs=[replace(run, curve=None) for run in records.runs],
        evaluations=[replace(item, curves=None) for item in records.evaluations],
    )
    content: dict[str, Any] = asdict(reduced)
    for run, record in zip(records.runs, content["runs"], strict=True):
        record["curve"] = _thin_curve(run.curve) if run.curve else None
    content |= {"seconds": records.seconds, "measure": records.measure}
    return dict(_json_value(content))


def _thin_curve(curve: Curve) -> dict[str, Any]:
    indices = np.unique(np.linspace(0, len(curve.steps) - 1, CURVE_POINTS).round().astype(int))
    measured = np.flatnonzero(np.isfinite(curve.val_loss))
    return {
        "val_loss": {
            int(step): value for step, value in zip(curve.steps[measured], curve.val_loss[measured], strict=True)
        },
        "step": curve.steps[indices].astype(int).tolist(),
        "loss_smoothed": smooth(curve.loss)[indices].tolist(),
        "images_per_second": smooth(curve.images_per_second)[indices].tolist(),
    }


def _json_value(value: Any) -> Any:
    """Convert paths to text, and non-finite numbers to null."""
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value
