"""What the figures show, in sentences with their numbers, for those who do not see them."""

from collections.abc import Iterable, Sequence

from dithc.report.facts import DatasetFacts, Facts
from dithc.report.figures import spectra as spectra_figure
from dithc.report.words import score, short, span


def loss(facts: Facts) -> str:
    """Describe the curves of all trainings."""
    said = [
        f"{run.name} from {short(run.loss_first10)} to {short(run.loss_last100)}"
        + ("" if run.val_loss is None else f", held-out {short(run.val_loss)} at the end")
        for run in facts.runs
        if run.loss_first10 is not None and run.loss_last100 is not None
    ]
    return (
        "Loss by step, on train tiles and on held-out tiles, over the learning rate: "
        + ("; ".join(said) or "no training")
        + "."
    )


def scores(facts: Facts) -> str:
    """Describe the bars of all evaluations."""
    said = []
    for dataset in facts.datasets:
        items = [item for item in facts.evaluations_of(dataset.name) if item.score]
        values = ", ".join(f"{item.label} {score(item.score.value(facts.measure))}" for item in items if item.score)
        said += [f"{dataset.title}: {values}"] if values else []
    return (
        f"{facts.measure} of every evaluation as bars, lower is better. " + ("; ".join(said) or "None was scored") + "."
    )


def throughput(facts: Facts) -> str:
    """Describe images per second."""
    said = [f"{run.name} {short(run.images_per_second)}" for run in facts.runs if run.images_per_second is not None]
    return "Images a second by step: " + (", ".join(said) or "not known") + "."


def stages(facts: Facts) -> str:
    """Describe the wall time of stages."""
    seconds: dict[str, float] = {}
    for timing in facts.timings:
        seconds[timing.stage] = seconds.get(timing.stage, 0.0) + timing.seconds
    return (
        "Wall time by stage: "
        + (", ".join(f"{stage} {span(value)}" for stage, value in seconds.items()) or "none")
        + "."
    )


def bands(dataset: DatasetFacts) -> str:
    """Describe the train statistics of a data set."""
    said = ", ".join(f"{band.name} {short(float(f'{band.mean:.3g}'))}" for band in dataset.bands)
    return f"Mean, deviation and range of each band over the train tiles of {dataset.title}; means: {said}."


def spectra(dataset: DatasetFacts, found: spectra_figure.Spectra) -> str:
    """Describe values by band and power by frequency."""
    real, *others = found.sides
    bands = _numbers(found.bands, found.physical(real.median))
    return (
        f"Values by band and power by frequency of {dataset.title}: {real.count} real tiles beside "
        f"{', '.join(f'{side.count} images {side.label}' for side in others)}. Medians of real tiles: {bands}."
    )


def _numbers(names: Sequence[str], values: Iterable[float]) -> str:
    return ", ".join(f"{name} {float(value):.3g}" for name, value in zip(names, values, strict=True))


def tiles(dataset: DatasetFacts) -> str:
    """Describe the map and the contact sheets."""
    parts = [f"{name} {count:,}" for name, count in dataset.splits.items()]
    lost = [f"{count:,} rejected, {reason}" for reason, count in dataset.tiles_rejected.items()]
    counts = "; ".join([*parts, *lost])
    return f"Tiles of {dataset.title} by split on a map where they have places, then examples of each: {counts}."
