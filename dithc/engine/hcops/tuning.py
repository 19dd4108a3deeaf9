"""Tuned choice for each matrix product of `linear`, found by a search on this machine and stored in a file.

A file is valid for one `TuningKey`. Without a file every product uses the kernels' own rule, which blocks by cache sizes. A
choice changes the order of the sum over k, so results of two tunings differ in rounding.

The search measures the plain product, which is never slower than by the rule at the tuned shapes. Products with a GELU
or a gated residual as epilogue use its cuts unmeasured, and never torch's product.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch

from dithc.core.artifacts import atomic_write
from dithc.core.caches import tuning_folder
from dithc.core.logging import get_logger
from dithc.engine import native
from dithc.engine.hardware import discover_machine
from dithc.engine.native import thread_layout

log = get_logger(__name__)

FORMAT = 1
LARGEST_NUMBER = 2**31 - 1  # C's int
CLUSTER_CUTS = (0, 1, 2)  # hc_cluster_cut: kernels' rule, rows, columns
MARGIN = 0.03
"""Smallest gain of a candidate over the default. Medians of alternating rounds differ by 1 to 2% on a shared machine."""

Layout = Literal["forward", "grad_input", "grad_weight"]
Dtype = Literal["fp32", "bf16"]
T = TypeVar("T")


class Blocking(NamedTuple):
    """Cuts of a product: `hc_blocking` of kernels/include/hcops.h. The kernels' rule sets fields that are zero."""

    mc: int = 0
    nc: int = 0
    kc: int = 0
    row_cuts: int = 0
    column_cuts: int = 0
    num_threads: int = 0
    cluster_cut: int = 0


Choice = Blocking | Literal["torch"]


class GemmShape(NamedTuple):
    """Product C (m, n) = A (m, k) B (k, n) of a linear layer, and the type of its operands."""

    m: int
    n: int
    k: int
    layout: Layout
    dtype: Dtype


@dataclass(frozen=True, kw_only=True)
class TuningKey:
    """Validity of a tuning.

    Attributes:
        caches: (level, kind, bytes, logical CPUs per cache) of every cache except instruction caches.
        cores: Number of cores available to this process.
        clusters: Number of clusters among which the `threads` of the kernels' team are split.
        dithc: Version of this package; `abi` is the version of the kernels' C interface.
    """

    cpu: str
    caches: tuple[tuple[int, str, int, int], ...]
    cores: int
    threads: int
    clusters: int
    isa: str
    dithc: str
    abi: int

    @property
    def file_name(self) -> str:
        """File name: a readable prefix and a digest of all fields."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        cpu = re.sub(r"[^a-z0-9]+", "-", self.cpu.lower()).strip("-")[:40]
        return f"{cpu}-{self.isa}-{self.threads}-{digest}.json"


class TuningResult(NamedTuple):
    """Result of the search for a product; the choice None is the kernels' own rule.

    Ratios are medians over the rounds of the time of the choice, and of torch's product, divided by the default's.
    """

    choice: Choice | None
    ratio: float
    torch_ratio: float
    default_seconds: float


def choice(m: int, n: int, k: int, layout: Layout, dtype: Dtype) -> Choice | None:
    """Return the tuned choice for a product: a blocking, "torch" for torch's product, or None for the kernels' rule."""
    if _trials:
        return _trials[-1]
    return _choices(torch.get_num_threads()).get(GemmShape(m, n, k, layout, dtype))


def torch_may_serve(layout: Layout, dtype: Dtype) -> bool:
    """Return whether torch's product has the required result type: fp32 for weight gradients."""
    return (layout, dtype) != ("grad_weight", "bf16")


@contextmanager
def use_blocking(candidate: Choice | None) -> Iterator[None]:
    """Use `candidate` for every product within a `with` block, as the search does."""
    _trials.append(candidate)
    try:
        yield
    finally:
        _trials.pop()


# Process-wide like the choice of back end, because backward passes may run on another thread than the search.
_trials: list[Choice | None] = []


def winner(ratios: Mapping[T, Sequence[float]]) -> T | None:
    """Return the candidate with the lowest median ratio to the default over the rounds; None keeps the default.

    The gain must exceed `MARGIN` even after adding the scatter (median absolute deviation).
    """
    medians = {name: median(values) for name, values in ratios.items()}
    scatter = {name: median(abs(value - medians[name]) for value in values) for name, values in ratios.items()}
    significant = [name for name in ratios if medians[name] + scatter[name] <= 1 - MARGIN]
    return min(significant, key=lambda name: medians[name], default=None)


def this_machine() -> TuningKey:
    """Return the key of the tuning that this process would use."""
    machine, library, threads = discover_machine(), native.library(), torch.get_num_threads()
    caches = [(c.level, c.kind, c.size_bytes, c.cpus_per_cache) for c in machine.caches if c.kind != "Instruction"]
    return TuningKey(
        cpu=machine.model_name,
        caches=tuple(sorted(caches)),
        cores=len(machine.visible_cores),
        threads=threads,  # equal to the threads of the kernels' team
        clusters=thread_layout.num_clusters(threads),
        isa=native.instruction_set(),
        dithc=version("dithc"),
        abi=0 if library is None else library.hc_version(),
    )


def path_of(key: TuningKey) -> Path | None:
    """Return the file of the tuning of `key`, or None without a folder for it."""
    folder = tuning_folder()
    return folder and folder / key.file_name


def summary() -> str | None:
    """Describe the tuning in use, or return None without one."""
    path = path_of(this_machine())
    choices = _choices(torch.get_num_threads()) if path is not None and path.exists() else {}
    if not choices:
        return None
    tuned = [choice for choice in choices.values() if choice is not None]
    return (
        f"tuning file {path}: {len(tuned)} of {len(choices)} product(s) tuned, {tuned.count('torch')} served by torch"
    )


def load(path: Path, key: TuningKey) -> dict[GemmShape, TuningResult]:
    """Read a tuning. If the file is damaged or belongs to another machine, warn and return an empty tuning."""
    try:
        rows = read_measurements(path, asdict(key), FORMAT)["products"]
        return {_product(row): _result(row, threads=key.threads) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = "tuning file %s is unusable (%s: %s), using the kernels' own blocking; fix: delete it, then `dithc tune-kernels`"
        log.warning(text, path, type(error).__name__, error)
        return {}


def read_measurements(path: Path, key: Mapping[str, Any], format: int) -> Any:
    """Return the content of a file of measurements; raise ValueError if it has another key or format."""
    content, expected = json.loads(path.read_text()), json.loads(json.dumps(key))
    differing = [field for field, value in expected.items() if content["key"][field] != value]
    if differing or content["format"] != format:
        raise ValueError(f"it belongs to another {', '.join(differing) or 'format'}")
    return content


def save(
    path: Path,
    key: TuningKey,
    results: Mapping[GemmShape, TuningResult],
    *,
    write: Callable[[Path, str], None] = atomic_write,
) -> None:
    """Add results to a tuning file. The operators of this process then use them."""
    stored = load(path, key) if path.exists() else {}
    rows = [_row(product, result) for product, result in sorted({**stored, **results}.items())]
    write(path, json.dumps({"format": FORMAT, "key": asdict(key), "products": rows}, indent=1) + "\n")
    _choices.cache_clear()


@cache
def _choices(num_threads: int) -> dict[GemmShape, Choice | None]:
    """Return the choices for this machine and number of threads, read at the first product. None is the kernels' rule."""
    key = this_machine()
    assert key.threads == num_threads
    path = path_of(key)
    if path is None or not path.exists():
        return {}
    choices = {product: result.choice for product, result in load(path, key).items()}
    log.info("%d tuned product(s) from %s", sum(choice is not None for choice in choices.values()), path)
    return choices


def _row(product: GemmShape, result: TuningResult) -> dict[str, Any]:
    choice = result.choice._asdict() if isinstance(result.choice, Blocking) else result.choice
    return {**product._asdict(), **result._asdict(), "choice": choice}


def _product(row: Mapping[str, Any]) -> GemmShape:
    if row["layout"] not in get_args(Layout) or row["dtype"] not in get_args(Dtype):
        raise ValueError(f"product {row['layout']} {row['dtype']} is unknown")
    return GemmShape(_number(row["m"]), _number(row["n"]), _number(row["k"]), row["layout"], row["dtype"])


def _result(row: Mapping[str, Any], *, threads: int) -> TuningResult:
    choice = row["choice"]
    if isinstance(choice, dict):
        choice = Blocking(**{name: _number(value) for name, value in choice.items()})
        if max(max(choice.row_cuts, 1) * max(choice.column_cuts, 1), choice.num_threads) > threads:
            raise ValueError(f"{choice} needs more than {threads} thread(s)")
        if choice.cluster_cut not in CLUSTER_CUTS:
            raise ValueError(f"{choice}: cluster_cut is one of {CLUSTER_CUTS}")
    elif choice not in (None, "torch"):
        raise ValueError(f"choice {choice!r} is unknown")
    elif choice == "torch" and not torch_may_serve(row["layout"], row["dtype"]):
        raise ValueError(f"torch rounds the product {row['layout']} {row['dtype']}, so it cannot serve it")
    return TuningResult(choice, float(row["ratio"]), float(row["torch_ratio"]), float(row["default_seconds"]))


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_NUMBER:
        raise ValueError(f"{value!r} is not an integer from 0 to {LARGEST_NUMBER}")
    return value
