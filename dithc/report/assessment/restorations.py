"""Quality of the restorations of a prior, relative to baselines without a network."""

from collections.abc import Iterator
from dataclasses import dataclass

from dithc.report.assessment.records import Assessment
from dithc.report.records import ReportRecords

OTHERS = ("restored", "member", "ensemble", "regression")  # methods with a network


@dataclass(frozen=True, kw_only=True)
class RelativeError:
    """RMSE of the restored pixels of a group over that of the best baseline."""

    restoration: str
    group: str
    ratio: float
    baseline: str

    @property
    def is_better(self) -> bool:
        """Return whether the error is smaller by at least half a percent, which two digits show."""
        return self.ratio < 0.995


def relative_errors(records: ReportRecords, run: str) -> list[RelativeError]:
    """Return the relative error of each group of withheld pixels in the restorations of a run, the largest first."""
    return sorted(_relative_errors(records, run), key=lambda error: -error.ratio)


def _relative_errors(records: ReportRecords, run: str) -> Iterator[RelativeError]:
    for item in records.restorations:
        for group, methods in item.scores.items() if item.prior == run else ():
            errors = {name: scores.get("rmse") for name, scores in methods.items() if name not in OTHERS}
            rmse, known = methods["restored"].get("rmse"), {name: value for name, value in errors.items() if value}
            if known and rmse is not None:
                best = min(known, key=known.__getitem__)
                yield RelativeError(restoration=item.name, group=group, ratio=rmse / known[best], baseline=best)


def restored_quality(records: ReportRecords, run: str) -> Assessment:
    """Return the answer for a run with restorations and without scored samples."""
    errors = relative_errors(records, run)
    if not errors:
        text = "No restoration withheld pixels (hide), so that no error is known."
        return Assessment(rating="unknown", short="no score", text=text)
    parts = [
        f"{one.restoration}, {one.group}: {one.ratio:.2f} × {one.baseline}" + ("" if one.is_better else " (no better)")
        for one in errors
    ]
    text = f"RMSE of withheld pixels over the best baseline without a network. {'; '.join(parts)}."
    if not errors[0].is_better:
        return Assessment(rating="poor", short=f"no better than {errors[0].baseline}", text=f"{text} Train longer.")
    return Assessment(rating="good", short="better than all baselines without a network", text=text)
