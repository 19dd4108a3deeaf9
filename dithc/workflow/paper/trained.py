"""Table 1 and figure 8: what the trainings of the experiment left."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dithc.config import Experiment, training
from dithc.papers import Cell, Picture, published
from dithc.runs import Manifest, digest

# Row of the paper's table 1 by the kind of a data set's source.
ROWS = {
    "gaofen2": "Gaofen-2",
    "sentinel2": "Sentinel-2",
    "sentinel2-array": "Sentinel-2",
    "sentinel2-stac": "Sentinel-2",
}
# Column of the paper's by ours: the paper's reference is PyTorch on a GPU.
PAPER = {
    "batch 112": "LX2, batch 112",
    "batch 28672": "LX2, batch 28,672",
    "batch 112, back end reference": "H100, batch 112",
}
LABELS = {"samples": "Samples beside real tiles, RGB", "composites": "Samples beside real tiles, composites of bands"}


def read_scores(experiment: Experiment, manifests: Iterable[Path], *, page: Path) -> list[Cell]:
    """For each data set its fine-tunings: a column for each batch and back end, of its seeds the mean and the range."""
    columns: dict[tuple[str, str], list[Path]] = {}
    for path in manifests:
        run = experiment.runs[experiment.evaluations[path.parent.name].run]
        columns.setdefault((run.dataset, _column(run)), []).append(path)
    if columns:
        return [_score(experiment, column, paths, page) for (_, column), paths in columns.items()]
    reason = "this experiment judges no training: give it `runs` and `evaluations`"
    return [
        Cell(id=f"fid-{row.lower()}", row=row, column="FID", quantity="FID", status="skipped", reason=reason)
        for row in ("Gaofen-2", "Sentinel-2")
    ]


def _column(run: training.Run) -> str:
    return f"batch {run.global_batch}" + ("" if run.backend == "auto" else f", back end {run.backend}")


def _score(experiment: Experiment, column: str, paths: Sequence[Path], page: Path) -> Cell:
    found = [Manifest.read(path, stage="fid") for path in paths]
    numbers: list[Any] = [one.numbers for one in found]
    first, name = numbers[0], paths[0].parent.name
    run = experiment.runs[experiment.evaluations[name].run]
    dataset = experiment.datasets[run.dataset]
    row = ROWS.get(dataset.source.kind)
    scores = [one["fid"] for one in numbers]
    floor = first.get("floor")
    labels = [
        f"n {first['n_generated']} against {first['n_real']}",
        f"extractor {first['extractor']} sha256 {str(first['sha256'])[:12]}",
        f"floor {floor:.3g}" if floor is not None else "no floor",
        f"{run.steps} steps",
        f"mean and range of {len(scores)} seeds" if len(scores) > 1 else "one seed",
    ]
    is_comparable = all(one["comparable"] for one in numbers) and row is not None
    return Cell(
        id=f"fid-{name}",
        row=dataset.title or run.dataset,
        column=column,
        quantity=f"FID: {', '.join(labels)}",
        status="measured",
        value=fmean(scores),
        low=min(scores) if len(scores) > 1 else None,
        high=max(scores) if len(scores) > 1 else None,
        published=published("table1", row, PAPER.get(column, "")) if is_comparable and row else None,
        command=f"dithc fid --config {page.parent / 'config.json'} --evaluation {name}",
        file=Path(os.path.relpath(paths[0], page)).as_posix(),
        digest=digest([one.digest for one in found]),
    )


def read_samples(pictures: Iterable[Path], *, page: Path) -> Iterator[Picture]:
    """The mosaics of the report."""
    for path in pictures:
        if path.stem in LABELS:
            label = LABELS[path.stem]
            alt = f"{label}: rows of real tiles of each data set above rows of images of its fine-tuned model"
            file = Path(os.path.relpath(path, page)).as_posix()
            yield Picture(label=label, path=file, caption=label, alt=alt)
