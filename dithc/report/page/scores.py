"""Tables of scores: of each data set, of what is measured beside FID and KID, and beside the paper where like is with like."""

from dataclasses import dataclass

from dithc.report.engine import published
from dithc.report.facts import SMALL, DatasetFacts, EvaluationFacts, Facts, Score
from dithc.report.page.beside import measured_rows
from dithc.report.page.tables import Cell, Table, table
from dithc.report.words import ABSENT, between, score

SMALL_NOTE = (
    f"KID comes first because a set has fewer than {SMALL:,} images: at such n FID is too high by an amount that depends on n, "
    "KID is not, and may be slightly below 0. Its interval says what another draw of as many images and tiles could change, each "
    "counted as independent; another training is not in it."
)


def score_tables(facts: Facts) -> list[Table]:
    """Return a table per evaluated data set."""
    return [_of_dataset(facts, dataset) for dataset in facts.datasets if facts.evaluations_of(dataset.name)]


def _of_dataset(facts: Facts, dataset: DatasetFacts) -> Table:
    items = facts.evaluations_of(dataset.name)
    best = facts.best(dataset.name)
    judges = list(dict.fromkeys(_judge(item.score) for item in items if item.score))
    said = judges[0] if len(judges) == 1 else "judged by several networks" if judges else "not run"
    last = ["Judged by"] if len(judges) > 1 else []
    rows = [[*_row(facts, item), *(Cell(text=_judge(item.score)) for _ in last)] for item in items]
    return Table(
        caption=f"Scores of {dataset.title}: {said}; rendering {dataset.rendering}",
        head=["Weights", "Sampler", *measures(facts), "Floor of FID", "Real", "Generated", *last],
        rows=rows,
        texts=2,
        best=items.index(best) if best else None,
    )


def measures(facts: Facts) -> tuple[str, str]:
    """Return the primary and the secondary measure."""
    return ("KID", "FID") if facts.measure == "KID" else ("FID", "KID")


def _row(facts: Facts, item: EvaluationFacts) -> list[Cell]:
    average = f" of length {item.ema}" if item.ema else ""
    name = Cell(text=item.label, notes=[item.name + ("" if item.at == "codec" else f", {item.weights}{average}")])
    notes = [note for note in (item.guided, _cost(item)) if note]
    sampler = Cell(text=ABSENT if item.at == "codec" else item.solver, notes=notes)
    one = item.score
    if one is None:
        return [name, sampler, Cell(text="not run"), *[Cell(text=ABSENT)] * 4]
    values = {
        "FID": _measured(one.fid, one.fid_interval, strong=facts.measure == "FID"),
        "KID": _measured(one.kid, one.kid_interval, strong=facts.measure == "KID"),
    }
    return [name, sampler, *(values[key] for key in measures(facts)), _floor(one), _real(item, one), _generated(one)]


def _cost(item: EvaluationFacts) -> str:
    """Describe the score cost of inexact images; empty if exact or unknown."""
    cost = item.cost
    if cost is None or item.is_exact:
        return ""
    kid = "" if cost.kid is None or cost.interval is None else f", KID {cost.kid:+.3g} {between(cost.interval)}"
    return f"over {cost.exact}, which is exact: FID {cost.fid:+.3g}{kid}, n = {cost.n:,}"


def _measured(value: float | None, interval: list[float] | None, *, strong: bool) -> Cell:
    notes = [between(interval)] if interval else []
    text = ABSENT if value is None else score(value)
    return Cell(text=text, notes=notes, title="" if value is None else str(value), strong=strong)


def _floor(one: Score) -> Cell:
    notes = [f"n = {' / '.join(f'{n:,}' for n in one.floor_n)}"] if one.floor_n else []
    notes += [f"at n = {one.n:,}: {score(one.floor_at_n)}"] if one.floor_at_n is not None else []
    text = ABSENT if one.floor is None else score(one.floor)
    return Cell(text=text, notes=notes, title="" if one.floor is None else str(one.floor))


def _real(item: EvaluationFacts, one: Score) -> Cell:
    return Cell(text=f"{one.n_real:,}", notes=[f"split {item.real_split}", *_clipped(one.clipped_real)])


def _generated(one: Score) -> Cell:
    notes = _clipped(one.clipped_generated)
    if one.copies is not None:
        known = "unknown" if one.copies_held_out is None else _percent(one.copies_held_out)
        notes += [f"copies {_percent(one.copies)}", f"not learnt {known}"]
    return Cell(text=f"{one.n_generated:,}", notes=notes)


def _clipped(share: float | None) -> list[str]:
    return [] if share is None else [f"clipped {_percent(share)}"]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _judge(one: Score | None) -> str:
    if one is None:
        return ABSENT
    comparable = "comparable with published FID" if one.comparable else "NOT COMPARABLE with published FID"
    return f"{comparable}; features of {one.extractor} (sha256 {one.sha256[:12]}), resize {one.resize}"


@dataclass(frozen=True, kw_only=True)
class BesidePaper:
    """The paper's table with our comparable scores, and reasons for the others."""

    table: Table | None
    reasons: list[str]


def beside_paper(facts: Facts, reference: published.Reference) -> BesidePaper:
    """Compare our best FID of each data set with the paper's, for published Inception features only."""
    printed = reference.tables.get("table1")
    if printed is None:
        return BesidePaper(table=None, reasons=["The paper's numbers were not given (config/paper/reference.yaml)."])
    rows, reasons = [], []
    for dataset in facts.datasets:
        best = facts.best(dataset.name)
        if best is None or best.score is None:
            reasons += [f"{dataset.title}: no score of ours."] if dataset.kind in reference.table1_row else []
        elif not best.paper:
            reasons.append(f"{dataset.title}: the paper has no such data set.")
        elif not best.score.comparable:
            reasons.append(f"{dataset.title}: not comparable. {_other_features(best.score)}")
        else:
            ours = f"{score(best.score.fid)} ({best.label}, n = {best.score.n:,})"
            published = (f"{best.paper[name]:.2f}" if name in best.paper else ABSENT for name in printed.columns[1:])
            rows.append([dataset.title, ours, *published])
    shown = table(printed.title, ["Data set", "Ours", *printed.columns[1:]], rows) if rows else None
    return BesidePaper(table=shown, reasons=reasons)


def _other_features(one: Score) -> str:
    return f"The paper's FID is of Inception-v3 features, ours of {one.kind or one.extractor} (resize {one.resize})."


def measured_tables(facts: Facts) -> list[Table]:
    """Return a table per extra measure."""
    return [
        table(
            f"Beside FID and KID: {row['evaluation']}",
            ["Measure", "Value"],
            [[key, value] for key, value in row.items()][1:],
            texts=2,
        )
        for row in measured_rows(facts)
    ]
