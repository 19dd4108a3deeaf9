"""Table 1 and figure 8, from the runs of the experiment."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dithc.config import ExperimentConfig
from dithc.core.artifacts import Manifest
from dithc.core.reproduction import ResultCell, ResultImage, published_value

# Row of table 1 in the paper by source kind of a dataset.
ROWS = {
    "gaofen2": "Gaofen-2",
    "sentinel2": "Sentinel-2",
    "sentinel2-array": "Sentinel-2",
    "sentinel2-stac": "Sentinel-2",
}
IMAGES = 10_000  # on both sides of a score in the paper
# Column of the paper by our column. The reference of the paper is PyTorch on a GPU.
PAPER = {
    "batch 112": "LX2, batch 112",
    "batch 28672": "LX2, batch 28,672",
    "batch 112, backend reference": "H100, batch 112",
}
LABELS = {"samples": "Samples next to real tiles, RGB", "composites": "Samples next to real tiles, band composites"}


def read_scores(experiment: ExperimentConfig, manifests: Iterable[Path], *, page: Path) -> list[ResultCell]:
    """Return a row per dataset and a column per training setting; the median of runs that differ only in their seeds."""
    groups: dict[str, list[tuple[Path, Manifest]]] = {}
    for path in manifests:
        score = Manifest.read(path, stage="fid")
        groups.setdefault(_without_seeds(experiment, score.name), []).append((path, score))
    if not groups:
        reason = "this experiment has no scores: add `runs` and `evaluations`"
        return [
            ResultCell(id=f"fid-{row.lower()}", row=row, column="FID", quantity="FID", status="skipped", reason=reason)
            for row in ("Gaofen-2", "Sentinel-2")
        ]
    places = [_row_and_column(experiment, scores[0][1].name) for scores in groups.values()]
    return [
        _cell(experiment, scores, page, is_alone=places.count(place) == 1)
        for place, scores in zip(places, groups.values(), strict=True)
    ]


def _without_seeds(experiment: ExperimentConfig, name: str) -> str:
    evaluation = experiment.evaluations[name]
    run = experiment.runs[evaluation.run]
    return evaluation.model_dump_json(exclude={"run", "seed"}) + run.model_dump_json(exclude={"seed"})


def _row_and_column(experiment: ExperimentConfig, name: str) -> tuple[str, str]:
    run = experiment.runs[experiment.evaluations[name].run]
    row = experiment.datasets[run.dataset].title or run.dataset
    return row, f"batch {run.global_batch_size}" + ("" if run.backend == "auto" else f", backend {run.backend}")


def _cell(
    experiment: ExperimentConfig, scores: Sequence[tuple[Path, Manifest]], page: Path, *, is_alone: bool
) -> ResultCell:
    """Return the median and range over seeds; for one seed the score."""
    path, score = sorted(scores, key=lambda pair: pair[1].summary["fid"])[(len(scores) - 1) // 2]
    row, column = _row_and_column(experiment, score.name)
    run = experiment.runs[experiment.evaluations[score.name].run]
    numbers, fids = score.summary, [pair.summary["fid"] for _, pair in scores]
    low, high = None, None
    seeds = f"seed {experiment.seed_of(experiment.evaluations[score.name].run)}"
    if len(scores) > 1:
        low, high, seeds = min(fids), max(fids), f"{'' if len(scores) % 2 else 'lower '}median of {len(scores)} seeds"
    floor = numbers.get("floor")
    settings = [
        f"n {numbers['n_generated']} against {numbers['n_real']}",
        f"extractor {numbers['extractor']} sha256 {str(numbers['sha256'])[:12]}",
        f"floor {floor:.3g}" if floor is not None else "no floor",
        f"{run.steps} steps",
        seeds,
    ]
    printed = None
    if numbers["comparable_to_published"] and {numbers["n_generated"], numbers["n_real"]} == {IMAGES}:
        name = ROWS.get(experiment.datasets[run.dataset].source.kind, "")
        printed = published_value("table1", name, PAPER.get(column, ""))
    return ResultCell(
        id=f"fid-{score.name}",
        row=row,
        column=column if is_alone else f"{column}, {scores[0][1].name}",
        quantity="FID: " + ", ".join(settings),
        status="measured",
        value=numbers["fid"],
        low=low,
        high=high,
        published=printed,
        command=f"dithc fid --config {page.parent / 'config.json'} --evaluation {score.name}",
        file=Path(os.path.relpath(path, page)).as_posix(),
        digest=score.digest,
    )


def labels(cells: Iterable[ResultCell]) -> list[str]:
    """Return evaluation settings per dataset for the figure: number of images, extractor and floor."""
    settings = {
        f"{cell.row}: {cell.quantity.removeprefix('FID: ').rsplit(', ', 2)[0]}."
        for cell in cells
        if cell.value is not None
    }
    return sorted(settings)


def read_samples(pictures: Iterable[Path], *, page: Path) -> Iterator[ResultImage]:
    for path in pictures:
        if label := LABELS.get(path.stem):
            alt = f"{label}: rows of real tiles of each dataset above rows of images of its fine-tuned model"
            file = Path(os.path.relpath(path, page)).as_posix()
            yield ResultImage(label=label, path=file, caption=label, alt=alt)
