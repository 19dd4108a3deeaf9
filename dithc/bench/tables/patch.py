"""Summary of `dithc bench patch`: training steps of third-party models, plain, compiled and patched."""

from collections.abc import Mapping
from typing import Any

from dithc.core.summaries import ABSENT, Measurement, Table, with_deviation


def patch_summary(result: Mapping[str, Any]) -> Measurement:
    """Summarize step times, speedups, gradient errors and served calls of each model and type."""
    settings = result["settings"]
    over = settings["compare"]
    head = ["Model", "Type", *(f"{way} s" for way in (*over, "patched")), *(f"Over {way}" for way in over)]
    rows, notes = [], []
    for case in result["cases"]:
        seconds, ratios = case.get("seconds", {}), case.get("speedup_of_patched_over", {})
        times = [with_deviation(seconds.get(way)) for way in (*over, "patched")]
        gains = [with_deviation(ratios.get(way)) for way in over]
        off, served = [ABSENT] * 2, ABSENT
        if case["status"] == "ok":
            off = [f"{case['gradients_off'][way]:.1e}" for way in ("eager", "patched")]
            served = f"{sum(row['served'] for row in case['served'])} of {len(case['served'])}"
        rows.append([case["model"], case["dtype"], *times, *gains, *off, served])
        reasons = {"not here": case["why"]} if case["status"] == "not here" else case["failures"]
        notes += [f"{case['model']} {case['dtype']}: {name}: {why}" for name, why in reasons.items()]
    head += ["Gradient error of eager", "Of patched", "Served types of calls"]
    return Measurement(
        title=f"A training step, batch {settings['batch']}, {settings['threads']} thread(s), medians of "
        f"{settings['repeats']} rounds",
        tables=[Table(title="Training steps of patched models", head=head, rows=rows, texts=2)],
        notes=notes,
    )
