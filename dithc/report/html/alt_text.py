"""Text alternatives of the figures, with their numbers."""

from dithc.core.measurements import rounded, short
from dithc.report.figures import spectra as spectra_figure
from dithc.report.formatting import score, span
from dithc.report.records import DatasetRecord, ReportRecords


def loss(records: ReportRecords) -> str:
    curves = [
        f"{run.name} from {short(run.mean_loss_first_10)} to {short(run.mean_loss_last_100)}"
        + ("" if run.val_loss is None else f", held-out {short(run.val_loss)} at the end")
        for run in records.runs
        if run.mean_loss_first_10 is not None and run.mean_loss_last_100 is not None
    ]
    summary = "; ".join(curves) or "no training run"
    return f"Loss by step, on train tiles and on held-out tiles, above the learning rate: {summary}."


def scores(records: ReportRecords) -> str:
    parts = []
    for dataset in records.datasets:
        items = [item for item in records.evaluations_of(dataset.name) if item.score]
        values = ", ".join(f"{item.label} {score(item.score.value(records.measure))}" for item in items if item.score)
        parts += [f"{dataset.title}: {values}"] if values else []
    return f"{records.measure} of every evaluation as bars, lower is better. {'; '.join(parts) or 'No scores'}."


def throughput(records: ReportRecords) -> str:
    rates = [f"{run.name} {short(run.images_per_second)}" for run in records.runs if run.images_per_second is not None]
    return f"Images per second by step: {', '.join(rates) or 'unknown'}."


def ranks(records: ReportRecords) -> str:
    parts = []
    for run in records.runs:
        if run.curve is not None and run.curve.ranks:
            found = "; ".join(finding["text"] for finding in run.curve.ranks["findings"]) or "none was slow"
            parts.append(
                f"{run.name}: watched {len(run.curve.ranks['nodes'])} ranks for {run.curve.ranks['steps']} steps: {found}"
            )
    return f"Time of each rank relative to the median of the other ranks, by step. {'. '.join(parts)}."


def stages(records: ReportRecords) -> str:
    seconds: dict[str, float] = {}
    for timing in records.timings:
        seconds[timing.stage] = seconds.get(timing.stage, 0.0) + timing.seconds
    return f"Wall time by stage: {', '.join(f'{stage} {span(value)}' for stage, value in seconds.items()) or 'none'}."


def spectra(dataset: DatasetRecord, found: spectra_figure.Spectra) -> str:
    real, *generated_sides = found.sides
    medians = zip(found.bands, found.physical(real.median), strict=True)
    return (
        f"Values by band and power by frequency of {dataset.title}: {real.count} real tiles next to "
        f"{', '.join(f'{side.count} images {side.label}' for side in generated_sides)}. Medians of real tiles: "
        f"{', '.join(f'{name} {rounded(float(value))}' for name, value in medians)}."
    )


def tiles(dataset: DatasetRecord) -> str:
    parts = [f"{name} {count:,}" for name, count in dataset.splits.items()]
    parts += [f"{count:,} rejected, {reason}" for reason, count in dataset.tiles_rejected.items()]
    counts = "; ".join(parts)
    return f"Tiles of {dataset.title} by split, on a map if they have locations, then examples of each: {counts}."
