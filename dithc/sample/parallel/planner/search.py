"""Valid degrees ordered by predicted seconds of the job, and reasons against other degrees."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dithc.core.logging import user_error
from dithc.sample.parallel.degrees import ParallelDegrees, SamplingWork, candidates, rejection_reason
from dithc.sample.parallel.planner.cost_model import NOMINAL, CostModel, MachineRates

# A ring rounds differently from one rank. It is chosen only if it takes less than this share of the seconds without it.
RING_SHARE = 0.9
RESOLUTION = 0.005  # resolution of predictions, as a share of the least seconds
UNKNOWN_LINKS = "the required links are neither measured nor described"
MAX_RANKS = 1 << 14  # limit for enumeration within seconds


@dataclass(frozen=True)
class PlanCandidate:
    """Degrees and their prediction."""

    degrees: ParallelDegrees
    seconds: float  # time until the last group is done
    exchange: float  # part of `seconds` in which the busiest group only communicates
    speedup: float  # over one rank
    ideal: float  # speedup divided by the number of ranks

    def order(self, least: float) -> tuple[int, int, int, int, float]:
        """Return the sort key: seconds in steps of RESOLUTION, then degrees of tokens and rows, size."""
        interval = int((self.seconds / least - 1) / RESOLUTION) if least > 0 else 0
        return interval, self.degrees.tokens, self.degrees.rows, self.degrees.size, self.seconds


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """Legal choices, best first, rejected options with reasons, and the costs that order them."""

    legal: Sequence[PlanCandidate]
    rejected: Sequence[tuple[ParallelDegrees, str]]
    costs: CostModel

    @property
    def best(self) -> PlanCandidate:
        """The fastest choice; ring only if it saves more than 10%."""
        first = self.legal[0]
        exact = next((choice for choice in self.legal if choice.degrees.ring == 1), first)
        return first if first.seconds < RING_SHARE * exact.seconds else exact

    def describe(self) -> str:
        """Return a line with the choice, its time and the runner-up."""
        best, costs = self.best, self.costs
        rivals = [choice for choice in self.legal if choice is not best]
        next_best = f"; next: {rivals[0].degrees}, {rivals[0].seconds:.3g} s" if rivals else ""
        if rivals and rivals[0].order(best.seconds) < best.order(best.seconds):
            next_best = f"; {rivals[0].degrees}, {rivals[0].seconds:.3g} s, rounds differently and saves too little"
        return (
            f"{best.degrees}: {best.seconds:.3g} s predicted ({best.exchange / best.seconds if best.seconds else 0:.1%} "
            f"exchange), {best.speedup:.3g} times one rank, {best.ideal:.0%} of {costs.ranks} ranks{next_best}"
        )

    def table(self, most: int = 16) -> str:
        """Return lines for the user: the best degrees, then rejected ones."""
        lines = [f"   seconds  exchange  times one rank  of {self.costs.ranks} ranks  degrees"]
        lines += [
            f"{choice.seconds:10.4g}  {choice.exchange / choice.seconds if choice.seconds else 0:8.1%}  {choice.speedup:14.4g}"
            f"  {choice.ideal:{len(str(self.costs.ranks)) + 9}.1%}  {choice.degrees}"
            f"{'  <- chosen' if choice is self.best else ''}"
            for choice in self.legal
            if choice is self.best or choice in self.legal[:most]
        ]
        if len(self.legal) > most:
            lines.append(f"  and {len(self.legal) - most} more, {self.legal[-1].seconds:.4g} s the slowest")
        return "\n".join([*lines, *self._rejections()])

    def _rejections(self) -> Iterator[str]:
        groups: dict[str, list[tuple[ParallelDegrees, str]]] = {}
        for degrees, reason in self.rejected:
            groups.setdefault(re.sub(r"\d+", "N", reason), []).append((degrees, reason))
        if groups:
            yield f"rejected: {len(self.rejected)}"
        for (degrees, reason), *repeats in groups.values():
            yield f"  {degrees}: {reason}{f'; and {len(repeats)} more' if repeats else ''}"


def rank_degrees(costs: CostModel, *, fixed: dict[str, int] | None = None) -> PlanResult:
    """Predict all valid degrees; `fixed` degrees are given. UserError with the reason if none is possible.

    Of data degrees with equal largest parts, only the smallest is considered.
    """
    if costs.ranks > MAX_RANKS:
        fix = "start fewer ranks, or set lower degrees"
        raise user_error("ranks that share a sampling run", got=costs.ranks, expected=f"at most {MAX_RANKS}", fix=fix)
    fixed = fixed or {}
    legal, rejected = [], []
    work = costs.work
    most_ranks = 2 * work.windows * work.tokens  # with more ranks than this, some have no part of an image
    for candidate in candidates(min(costs.ranks, most_ranks), windows=work.windows, given=fixed.get("windows")):
        if any(getattr(candidate, name) != degree for name, degree in fixed.items() if name != "data"):
            continue
        reason = rejection_reason(candidate, costs.work, ranks=costs.ranks, ranks_per_node=costs.ranks_per_node)
        if reason is None and not costs.has_links(candidate):
            reason = UNKNOWN_LINKS
        if reason is not None:
            rejected.append((candidate, reason))
            continue
        for data in _data_degrees(costs, candidate, fixed):
            degrees = replace(candidate, data=data)
            reason = rejection_reason(degrees, costs.work, ranks=costs.ranks, ranks_per_node=costs.ranks_per_node)
            if reason is not None:
                rejected.append((degrees, reason))
                continue
            time = costs.job(degrees)
            speedup = costs.alone / time.whole if time.whole else 1.0
            legal.append(PlanCandidate(degrees, time.whole, time.exchange, speedup, speedup / costs.ranks))
    if not legal:
        raise _impossible(costs, fixed, rejected)
    optimum = min(choice.seconds for choice in legal)
    return PlanResult(legal=sorted(legal, key=lambda choice: choice.order(optimum)), rejected=rejected, costs=costs)


def best_degrees(
    work: SamplingWork,
    *,
    ranks: int,
    ranks_per_node: int,
    fixed: dict[str, int] | None = None,
    rates: MachineRates = NOMINAL,
) -> ParallelDegrees:
    """Return the fastest degrees for some work; `fixed` degrees are given. UserError if none is possible."""
    costs = CostModel(work=work, rates=rates, ranks=ranks, ranks_per_node=ranks_per_node)
    return rank_degrees(costs, fixed=fixed).best.degrees


def _data_degrees(costs: CostModel, candidate: ParallelDegrees, fixed: dict[str, int]) -> Iterator[int]:
    """Yield the smallest data degree for each number of images per part."""
    if "data" in fixed:
        yield fixed["data"]
        return
    most_images = max(costs.work.shards, default=1)
    sizes = set()
    for data in range(1, min(most_images, costs.ranks // candidate.size) + 1):
        largest = tuple(-(-images // data) for images in sorted(set(costs.work.shards)))
        if largest not in sizes:
            sizes.add(largest)
            yield data


def _impossible(costs: CostModel, fixed: dict[str, int], rejected: Sequence[tuple[ParallelDegrees, str]]) -> Exception:
    reason = rejection_reason(
        ParallelDegrees(**fixed), costs.work, ranks=costs.ranks, ranks_per_node=costs.ranks_per_node
    )
    reason = reason or (rejected[0][1] if rejected else "no degrees are left")
    requested = ", ".join(f"{name} {degree}" for name, degree in fixed.items()) or "no degrees"
    return user_error(
        "machine.sampling",
        got=f"{requested}: {reason}",
        expected=f"degrees of at most {costs.ranks} ranks, {costs.ranks_per_node} per node, that fit the work",
        fix="set a degree to auto, or start another number of ranks",
    )
