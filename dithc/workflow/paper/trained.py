"""Table 1 and figure 8: what the trainings of the experiment left."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dithc.config import Experiment
from dithc.papers import Cell, Picture, published
from dithc.runs import Manifest

# Row of the paper's table 1 by the kind of a data set's source.
ROWS = {
    "gaofen2": "Gaofen-2",
    "sentinel2": "Sentinel-2",
    "sentinel2-array": "Sentinel-2",
    "sentinel2-stac": "Sentinel-2",
}
COLUMN = "LX2, batch 112"
LABELS = {"samples": "Samples beside real tiles, RGB", "bands": "Samples beside real tiles, band composites"}


def read_scores(experiment: Experiment, manifests: Iterable[Path], *, page: Path) -> list[Cell]:
    """A row for each evaluation of a fine-tuned model."""
    cells = [_score(experiment, path, page) for path in manifests]
    if not cells:
        reason = "this experiment judges no training: give it `runs` and `evaluations`"
        cells = [
            Cell(id=f"fid-{row.lower()}", row=row, column="FID", quantity="FID", status="skipped", reason=reason)
            for row in ("Gaofen-2", "Sentinel-2")
        ]
    return cells


def _score(experiment: Experiment, path: Path, page: Path) -> Cell:
    manifest = Manifest.read(path, stage="fid")
    numbers: Any = manifest.numbers
    name = path.parent.name
    evaluation = experiment.evaluations[name]
    run = experiment.runs[evaluation.run]
    dataset = experiment.datasets[run.dataset]
    row = ROWS.get(dataset.source.kind)
    low, high = numbers.get("fid_interval") or (None, None)
    is_comparable = bool(numbers["comparable"]) and row is not None
    floor = numbers.get("floor")
    labels = [
        f"n {numbers['n_generated']} against {numbers['n_real']}",
        f"extractor {str(numbers['extractor'])[:12]} {str(numbers['sha256'])[:12]}",
        f"floor {floor:.2f}" if floor is not None else "no floor",
        f"batch {run.global_batch}, {run.steps} steps",
    ]
    return Cell(
        id=f"fid-{name}",
        row=dataset.title or run.dataset,
        column=f"{name} (batch {run.global_batch})",
        quantity="FID: " + ", ".join(labels),
        status="measured",
        value=numbers["fid"],
        low=low,
        high=high,
        published=published("table1", row, COLUMN) if is_comparable and row else None,
        command=f"dithc fid --config {page.parent / 'config.json'} --evaluation {name}",
        file=Path(os.path.relpath(path, page)).as_posix(),
        digest=manifest.digest,
    )


def read_samples(pictures: Iterable[Path], *, page: Path) -> Iterator[Picture]:
    """The mosaics of the report."""
    for path in pictures:
        if path.stem in LABELS:
            label = LABELS[path.stem]
            alt = f"{label}: rows of real tiles of each data set above rows of images of its fine-tuned model"
            file = Path(os.path.relpath(path, page)).as_posix()
            yield Picture(label=label, path=file, caption=label, alt=alt)
