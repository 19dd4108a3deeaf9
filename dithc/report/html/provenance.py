"""Tables of settings and provenance: runs, hyperparameters, datasets, codecs, manifests."""

from dithc.core.summaries import ABSENT, gib, percent, short, short_or_absent
from dithc.report.formatting import span
from dithc.report.html.tables import Cell, Table, table
from dithc.report.records import DatasetFacts, ReportRecords, RunFacts

STATISTICS = ("min", "p1", "median", "p99", "max")
SHARES = {"below": "clipped low", "above": "clipped high", "invalid": "no data"}
RUNS = [
    *("Run", "Network", "Steps × batch", "First 10", "Last 100", "Held-out", "Learning rate", "s per step", "Images/s"),
    *("Memory", "Executed as"),
]


def training_table(facts: ReportRecords) -> Table:
    """Return a row per run: network, duration, losses, speed."""
    rows = [_training(facts, run) for run in facts.runs]
    return Table(caption="Training runs: losses and speed", head=RUNS, rows=rows, texts=2)


def _training(facts: ReportRecords, run: RunFacts) -> list[Cell]:
    plan = [f"of {run.steps_planned:,} steps"] if run.step != run.steps_planned else []
    ranks = "" if not run.ranks else f"{run.ranks} rank{'s' if run.ranks != 1 else ''}"
    threads = f"{run.threads} thread{'s' if run.threads != 1 else ''}" if run.threads else ""
    resumed = [f"resumed at step {', '.join(map(str, run.resumes))}"] if run.resumes else []
    changes = [
        f"{key} {value}" for key, value in run.changes.items() if key not in ("hidden_size", "depth", "num_heads")
    ]
    parameters = [] if run.parameters is None else [f"{run.parameters / 1e6:,.1f} M parameters"]
    return [
        Cell(text=run.name, notes=[f"{facts.dataset(run.dataset).title}, from {run.init_from_run or 'scratch'}"]),
        Cell(text=run.model, notes=[*parameters, *changes]),
        Cell(text="not run" if run.step is None else f"{run.step:,} × {run.global_batch_size:,}", notes=plan),
        Cell(text=short_or_absent(run.loss_first10), notes=[f"step 1: {short_or_absent(run.initial_loss)}"]),
        Cell(text=short_or_absent(run.loss_last100), strong=True),
        Cell(text=short_or_absent(run.val_loss), strong=True),
        Cell(text=run.settings.get("lr", ABSENT), notes=[run.settings.get("lr_schedule", "")]),
        Cell(text=short_or_absent(run.seconds_per_step)),
        Cell(text=short_or_absent(run.images_per_second)),
        Cell(text=gib(run.peak_rss_bytes)),
        Cell(text=run.dtype, notes=[*([f"{ranks} × {threads}" if threads else ranks] if ranks else []), *resumed]),
    ]  # fmt: skip


def settings_of(columns: dict[str, dict[str, str]], *, what: str) -> tuple[Table | None, list[tuple[str, str]]]:
    """Split settings into a table of those that differ and pairs of common ones; omit unset settings."""
    keys = dict.fromkeys(key for settings in columns.values() for key in settings)
    rows = [[key, *(settings.get(key, "") for settings in columns.values())] for key in keys]
    common = [(row[0], row[1]) for row in rows if len(set(row[1:])) == 1 and row[1]]
    differ = [[cell or ABSENT for cell in row] for row in rows if len(set(row[1:])) > 1]
    caption = f"Settings that differ between {what}"
    return table(caption, ["Setting", *columns], differ, texts=1 + len(columns)) if differ else None, common


def band_table(dataset: DatasetFacts) -> Table | None:
    """Return band statistics by split if measured, else of train tiles."""
    caption = f"Bands of {dataset.title}" + (f", in {dataset.units}" if dataset.units else "")
    if dataset.ranges:
        rows = [
            [
                record["band"],
                split,
                *(_value(record.get(key)) for key in STATISTICS),
                *(percent(record.get(key), decimals=2) for key in SHARES),
            ]
            for records in zip(*dataset.ranges.values(), strict=True)
            for split, record in zip(dataset.ranges, records, strict=True)
        ]
        return table(caption, ["Band", "Split", *STATISTICS, *SHARES.values()], rows, texts=2)
    rows = [[band.name, *map(_value, (band.mean, band.std, band.low, band.high))] for band in dataset.bands]
    note = "Over the train tiles; low and high map to −1 and 1."
    return table(caption, ["Band", "mean", "standard deviation", "low", "high"], rows, note=note) if rows else None


def _value(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def origin_table(facts: ReportRecords) -> Table:
    """Return a row of provenance per manifest."""
    head = ["Stage", "Name", "Digest", "Code", "Commit", "Machine", "Written", "Manifest", "Wall time"]
    rows = [
        [
            *(one.stage, one.name, one.digest, one.code, one.commit or ABSENT, one.host, one.written, one.path),
            span(one.seconds),
        ]
        for one in facts.origins
    ]
    return table(f"The {len(rows)} manifests of this page", head, rows, texts=8)


def _rejected(reasons: dict[str, int]) -> str:
    return "; ".join(f"{number:,}: {reason}" for reason, number in reasons.items()) or "none"


def data_facts(facts: ReportRecords, dataset: DatasetFacts) -> list[tuple[str, str]]:
    """Describe a dataset in pairs."""
    codec = dataset.codec
    size = f" of {dataset.size} × {dataset.size} px" if dataset.size else ""
    ground = f", {short(dataset.gsd_m)} m per pixel" if dataset.gsd_m else ""
    splits = ", ".join(f"{name} {dataset.splits.get(name, 0):,}" for name in ("train", "val", "test"))
    pairs = [
        ("source", dataset.kind + (", generated by dithc synthesize" if dataset.synthetic else "")),
        ("scenes", "not run" if dataset.scenes is None else f"{dataset.scenes:,} accepted"),
        ("scenes rejected", _rejected(dataset.scenes_rejected)),
        ("tiles", "not run" if dataset.tiles is None else f"{dataset.tiles:,} accepted{size}{ground}"),
        ("tiles rejected", _rejected(dataset.tiles_rejected)),
        ("split", splits if dataset.splits else "not run"),
        ("bands", " ".join(dataset.band_names) + (f" ({dataset.units})" if dataset.units else "")),
        ("rendering", dataset.rendering),
    ]
    pairs += [("classes", str(dataset.classes))] if dataset.classes and dataset.classes > 1 else []
    pairs.append(("codec", _codec(facts, dataset)))
    by_band = ", ".join(f"{band} {short(value)}" for band, value in codec.psnr_db_by_band.items())
    return pairs + ([("PSNR by band", f"{by_band} dB")] if by_band else [])


def _codec(facts: ReportRecords, dataset: DatasetFacts) -> str:
    codec = dataset.codec
    parts = [f"{codec.name} ({codec.kind})"]
    parts += [f"latents {' × '.join(map(str, codec.shape))}"] if codec.shape else []
    if codec.psnr_db is not None:
        linear = (
            "" if codec.psnr_linear_db is None else f" (linear codec of the same size: {short(codec.psnr_linear_db)})"
        )
        parts.append(f"reconstruction {short(codec.psnr_db)} dB PSNR{linear}")
    parts += [f"SSIM {short(codec.ssim)}"] if codec.ssim is not None else []
    parts += [f"spectral angle {short(codec.spectral_angle_deg)}°"] if codec.spectral_angle_deg is not None else []
    parts += [f"NDVI error {short(codec.ndvi_error)}"] if codec.ndvi_error is not None else []
    parts += [f"trained {codec.steps:,} steps"] if codec.steps else []
    if codec.train_dataset and codec.train_dataset != dataset.name:
        parts.append(f"trained on {facts.dataset(codec.train_dataset).title}")
    return ", ".join(parts)
