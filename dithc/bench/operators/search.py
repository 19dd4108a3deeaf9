"""Search for the fastest kernel parameters of each matrix product of a model on this machine.

Candidates run through the operator itself, interleaved with each other and with the default rule.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product as product_of
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dithc.bench.environment import prepare_threads, require_at_least, require_library
from dithc.bench.operators.cases import linear_run
from dithc.bench.operators.settings import autocast_context
from dithc.bench.operators.shapes import PASSES, LinearShape, Pass, all_layers
from dithc.bench.rooflines import Precision
from dithc.bench.timing import Timing, loops_for, time_runs
from dithc.core.artifacts import atomic_write, outputs
from dithc.core.caches import TUNING_VARIABLE
from dithc.core.logging import get_logger, progress, user_error
from dithc.engine import hcops
from dithc.engine.hcops import tuning
from dithc.engine.native import thread_layout
from dithc.model import DiT

log = get_logger(__name__)

# Depths, heights and widths of blocks in elements. The kernels' rule selects depths of 200 to 800 for caches of 32 to
# 64 KB, heights that fill parts of an L2 cache of 0.5 to 2 MB, and the full width for the layers of DiT. These values
# surround the rule's.
DEPTHS = (128, 192, 256, 384, 512, 768, 1152)
HEIGHTS = (48, 96, 192, 384, 768)
WIDTHS = (384, 768, 1536, 3072)
# Larger idle shares of threads are not tried.
LARGEST_IDLE_SHARE = 0.1
FIRST_ROUNDS = 2
# Load average before the search; an idle machine has almost none.
LARGEST_LOAD = 0.5
SECONDS_PER_TIME = 0.002

# Measures each candidate (None: the kernels' rule) in the given number of interleaved rounds.
Measure = Callable[[Sequence[tuning.Choice | None], int], Mapping[tuning.Choice | None, Timing]]


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Settings of the search, described by `dithc tune-kernels --help`."""

    model: str = "DiT-XL/2"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 4
    dtypes: tuple[Precision, ...] = ("fp32", "bf16")
    threads: int | None = None
    rounds: int = 15
    out: Path | None = None


def tune(settings: TuneSettings) -> dict[str, Any]:
    """Search, write the tuning file, and return the result."""
    require_at_least(settings, "tune", batch=1, rounds=1, threads=1)
    require_library("tune: C kernels")
    prepare_threads(settings.threads)
    if (load := os.getloadavg()[0]) > LARGEST_LOAD:
        log.warning("the machine is busy (load average %.1f), so that results may be noise: rerun later", load)
    key = tuning.this_machine()
    path = _path(key, settings.out)
    with torch.device("meta"):
        config = DiT.from_preset(settings.model, **settings.overrides).config
    layers = {layer[1:]: layer for layer in all_layers(config, batch=settings.batch)}.values()  # one of each shape
    searches = [(layer, kind, dtype) for dtype in settings.dtypes for layer in layers for kind in PASSES]
    team = {"threads": key.threads, "clusters": thread_layout.num_clusters(key.threads)}
    results: dict[tuning.GemmShape, tuning.TuningResult] = {}
    with hcops.use("c"), progress(total=len(searches), label="tune", unit="product") as bar:
        for layer, kind, dtype in searches:
            product = tuning.GemmShape(*layer.product(kind), kind, dtype)
            results[product] = search(product, _measure(layer, kind, dtype), rounds=settings.rounds, **team)
            bar.update(1, now=f"{layer.name} {kind} {dtype}: {_describe(results[product])}")
    tuning.save(path, key, results, write=outputs.write if settings.out else atomic_write)
    log.info("wrote %s", path)
    return _result(path, key, results)


def show_tuning(*, threads: int | None, out: Path | None) -> dict[str, Any]:
    """Return the existing tuning of this machine."""
    prepare_threads(threads)
    key = tuning.this_machine()
    path = _path(key, out)
    return _result(path, key, tuning.load(path, key) if path.exists() else {})


def search(
    product: tuning.GemmShape, measure: Measure, *, threads: int, rounds: int, clusters: int = 1
) -> tuning.TuningResult:
    """Search depth and cuts, then height and width of the best candidate, then decide in new rounds."""
    first = halve([tuning.Blocking(), *depths_and_cuts(product, threads=threads, clusters=clusters)], measure)
    best = halve([first, *heights_and_widths(product, first)], measure)
    timings = measure([None, best, "torch"], rounds)
    ratios = {name: timing.ratios_to(timings[None]) for name, timing in timings.items() if name is not None}
    excluded: set[tuning.Choice] = {tuning.Blocking()}
    if not tuning.torch_may_serve(product.layout, product.dtype):
        excluded.add("torch")  # measured anyway, to be shown
    choice = tuning.winner({name: values for name, values in ratios.items() if name not in excluded})
    return tuning.TuningResult(
        choice=choice,
        ratio=1.0 if choice is None else median(ratios[choice]),
        torch_ratio=median(ratios["torch"]),
        default_seconds=timings[None].median,
    )


def halve(candidates: Sequence[tuning.Blocking], measure: Measure) -> tuning.Blocking:
    """Run successive halving: keep the faster half and double its rounds."""
    remaining, rounds = list(dict.fromkeys(candidates)), FIRST_ROUNDS
    while len(remaining) > 1:
        timings = measure([None, *remaining], rounds)
        ratios = {name: timings[name].ratio_to(timings[None]) for name in remaining if name in timings}
        remaining = sorted(ratios, key=lambda name: ratios[name])[: (len(ratios) + 1) // 2]
        rounds *= 2
    return remaining[0] if remaining else tuning.Blocking()


def depths_and_cuts(product: tuning.GemmShape, *, threads: int, clusters: int = 1) -> Iterator[tuning.Blocking]:
    """Yield every depth below k with every grid on nearly all threads of a core cluster, and with one thread."""
    for kc in (0, *(depth for depth in DEPTHS if depth < product.k)):
        for (rows, columns), cut in product_of(
            grids(threads // clusters), tuning.CLUSTER_CUTS if clusters > 1 else (0,)
        ):
            yield tuning.Blocking(kc=kc, row_cuts=rows, column_cuts=columns, cluster_cut=cut)
    if threads > 1:
        yield tuning.Blocking(row_cuts=1, column_cuts=1, num_threads=1)


def heights_and_widths(product: tuning.GemmShape, base: tuning.Blocking) -> Iterator[tuning.Blocking]:
    """Yield `base` with every height and width below the matrix size."""
    for mc in (0, *(height for height in HEIGHTS if height < product.m)):
        for nc in (0, *(width for width in WIDTHS if width < product.n)):
            yield base._replace(mc=mc, nc=nc)


def grids(threads: int) -> Iterator[tuple[int, int]]:
    """Yield cuts of rows and columns with a product close to the number of threads."""
    for rows in range(1, threads + 1):
        columns = threads // rows
        if rows * columns >= threads * (1 - LARGEST_IDLE_SHARE):
            yield rows, columns


def _measure(layer: LinearShape, kind: Pass, dtype: Precision) -> Measure:
    """Return a function that times candidates on one product, except candidates that the kernels reject."""
    with autocast_context(dtype):
        run = linear_run(layer, kind, dtype)

    def run_candidate(candidate: tuning.Choice | None) -> object:
        with tuning.use_blocking(candidate):
            return run()

    def measure(candidates: Sequence[tuning.Choice | None], rounds: int) -> Mapping[tuning.Choice | None, Timing]:
        runs: dict[tuning.Choice | None, Callable[[], object]] = {}
        with autocast_context(dtype):
            for candidate in candidates:
                try:
                    run_candidate(candidate)
                except ValueError as error:
                    log.debug("%s is rejected: %s", candidate, error)
                else:
                    runs[candidate] = partial(run_candidate, candidate)
            loops = max(loops_for({"default": runs[None]}, seconds=SECONDS_PER_TIME).values())
            return time_runs(runs, repeats=rounds, loops=dict.fromkeys(runs, loops))

    return measure


def _result(
    path: Path, key: tuning.TuningKey, results: Mapping[tuning.GemmShape, tuning.TuningResult]
) -> dict[str, Any]:
    rows = [
        {**product._asdict(), **result._asdict(), "choice": _describe(result)}
        for product, result in sorted(results.items())
    ]
    return {"bench": "tune", "path": str(path), "key": asdict(key), "products": rows}


def _path(key: tuning.TuningKey, output: Path | None) -> Path:
    path = output or tuning.path_of(key)
    if path is None:
        got = f"{TUNING_VARIABLE}={os.environ.get(TUNING_VARIABLE, '')}, and no writable cache"
        fix = f"pass --out, or set {TUNING_VARIABLE} to a writable folder"
        raise user_error("tune: no file for the result", got=got, expected="a writable folder", fix=fix)
    return path


def _describe(result: tuning.TuningResult) -> str:
    if isinstance(result.choice, tuning.Blocking):
        return ", ".join(f"{name} {value}" for name, value in result.choice._asdict().items() if value)
    return result.choice or "default"
