"""Search of `dithc tune-kernels`, on an emulated machine with a known optimum, then a small search on this machine."""

import pytest

from dithc.bench.operators import TuneSettings, search, show_tuning, tune
from dithc.bench.operators.search import depths_and_cuts, grids, halve, heights_and_widths
from dithc.bench.timing import Timing
from dithc.cli import main
from dithc.core.logging import UserError
from dithc.engine.hcops import tuning
from dithc.engine.hcops.kernel_registry import obstacle
from dithc.engine.hcops.tuning import Blocking, GemmShape

PRODUCT = GemmShape(4096, 1152, 384, "forward", "fp32")
TINY = {"hidden_size": 32, "depth": 1, "num_heads": 2, "input_size": 8, "num_classes": 3}


def noiseless(seconds_of):
    """Return a noiseless measure: `seconds_of(candidate)` is the time of each run; None rejects the candidate."""

    def measure(candidates, rounds):
        seconds = {candidate: seconds_of(candidate) for candidate in candidates}
        return {name: Timing((value,) * rounds) for name, value in seconds.items() if value is not None}

    return measure


def test_search_finds_the_optimal_depth_height_and_cuts():
    def seconds(candidate):
        if candidate in (None, Blocking()):
            return 2.0
        if candidate == "torch":
            return 1.9
        penalty = (candidate.kc != 256) + (candidate.row_cuts != 2) + (candidate.mc != 192) + (candidate.nc != 384)
        return 1.0 + 0.2 * penalty

    result = search.search(PRODUCT, noiseless(seconds), threads=2, rounds=5)
    assert result.choice == Blocking(mc=192, nc=384, kc=256, row_cuts=2, column_cuts=1)
    assert result.ratio == pytest.approx(0.5)
    assert result.torch_ratio == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("product", "seconds", "choice", "torch_ratio"),
    [
        (PRODUCT, lambda c: 1.0 if c == "torch" else 2.0, "torch", 0.5),
        # It would round a gradient to bf16.
        (PRODUCT._replace(layout="grad_weight", dtype="bf16"), lambda c: 1.0 if c == "torch" else 2.0, None, 0.5),
        (PRODUCT, lambda c: 1.0 if c is None else 0.98, None, 0.98),  # no candidate gains the margin
        (PRODUCT, lambda c: None if isinstance(c, Blocking) and c.row_cuts == 2 else 1.0, None, 1.0),  # rejected
    ],
)
def test_search_selects_torch_or_default_and_skips_rejected_candidates(product, seconds, choice, torch_ratio):
    result = search.search(product, noiseless(seconds), threads=2, rounds=5)
    assert (result.choice, result.torch_ratio) == (choice, torch_ratio)
    assert result.ratio == (torch_ratio if choice == "torch" else 1.0)


def test_halving_doubles_the_rounds_of_the_faster_half():
    requests = []

    def measure(candidates, rounds):
        requests.append((len(candidates) - 1, rounds))
        return noiseless(lambda c: 1.0 if c is None else 1.0 + c.kc)(candidates, rounds)

    assert halve([Blocking(kc=kc) for kc in (5, 3, 1, 4)], measure) == Blocking(kc=1)
    assert requests == [(4, 2), (2, 4)]


@pytest.mark.parametrize("threads", [1, 2, 3, 16, 38])
def test_grids_use_nearly_all_threads_and_never_more(threads):
    found = list(grids(threads))
    assert found
    assert all(0.9 * threads <= rows * columns <= threads for rows, columns in found)
    assert (threads, 1) in found
    assert (1, threads) in found


def test_candidates_cut_rows_or_columns_among_clusters():
    wide = GemmShape(512, 512, 16, "forward", "fp32")
    found = list(depths_and_cuts(wide, threads=4, clusters=2))
    assert {candidate.cluster_cut for candidate in found if candidate.num_threads != 1} == {0, 1, 2}
    assert all(candidate.row_cuts * candidate.column_cuts <= 2 for candidate in found)
    assert {candidate.cluster_cut for candidate in depths_and_cuts(wide, threads=4)} == {0}


def test_candidates_are_smaller_than_the_matrix():
    tiny = GemmShape(2, 32, 16, "forward", "fp32")
    assert {candidate.kc for candidate in depths_and_cuts(tiny, threads=2)} == {0}
    assert list(heights_and_widths(tiny, Blocking(kc=8))) == [Blocking(kc=8)]


@pytest.fixture
def with_kernels(tmp_path, monkeypatch):
    """Return a folder for tunings; skip without the C kernels."""
    if reason := obstacle("c"):
        pytest.skip(f"back end c: {reason}")
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path))
    monkeypatch.setattr(search, "SECONDS_PER_TIME", 1e-5)
    monkeypatch.setattr(search, "DEPTHS", (16,))
    monkeypatch.setattr(search, "HEIGHTS", (16,))
    monkeypatch.setattr(search, "WIDTHS", (16,))
    tuning._choices.cache_clear()
    yield tmp_path
    tuning._choices.cache_clear()


@pytest.mark.slow
def test_tune_kernels_tunes_every_product_and_shows_the_saved_result(with_kernels, capsys):
    path = with_kernels / "own.json"
    arguments = ["--model", "DiT-S/2", "--batch", "2", "--dtype", "both", "--rounds", "1", "--out", str(path)]
    assert main(["tune-kernels", *arguments, *(f"--override={name}={value}" for name, value in TINY.items())]) == 0
    searched = capsys.readouterr().out
    products = {
        (row["m"], row["n"], row["k"], row["layout"], row["dtype"])
        for row in show_tuning(threads=None, out=path)["products"]
    }
    for dtype in ("fp32", "bf16"):
        assert (32, 96, 32, "forward", dtype) in products  # 2 images of 16 tokens; q, k and v
        assert (32, 32, 96, "grad_input", dtype) in products
        assert (96, 32, 32, "grad_weight", dtype) in products
        assert (2, 192, 32, "forward", dtype) in products  # the condition
    assert main(["tune-kernels", "--show", "--out", str(path)]) == 0
    assert capsys.readouterr().out == searched


def test_tuning_is_rejected_if_disabled(with_kernels, monkeypatch):
    monkeypatch.setenv("DITHC_TUNING_FOLDER", "off")
    with pytest.raises(UserError, match="DITHC_TUNING_FOLDER"):
        tune(TuneSettings(model="DiT-S/2", overrides=TINY))


def test_tuning_without_c_kernels_raises_user_error(monkeypatch):
    monkeypatch.setattr("dithc.bench.environment.native.library", lambda: None)
    with pytest.raises(UserError, match="C kernels"):
        tune(TuneSettings(overrides=TINY))
