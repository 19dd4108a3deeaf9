"""Tuning file: selection with a margin, validity by key, and rejection of wrong files."""

import dataclasses
import json
import logging

import pytest
import torch

from dithc.engine.hcops import tuning
from dithc.engine.hcops.tuning import Blocking, GemmShape, TuningKey, TuningResult

KEY = TuningKey(
    cpu="A CPU (tm) @ 2.0 GHz",
    caches=((1, "Data", 32768, 2), (2, "Unified", 1048576, 2)),
    cores=2,
    threads=2,
    clusters=1,
    isa="avx512",
    dithc="0.1.0",
    abi=2,
)
QKV = GemmShape(1024, 3456, 1152, "forward", "fp32")
OUT = GemmShape(1024, 1152, 1152, "grad_input", "bf16")
RESULTS = {
    QKV: TuningResult(Blocking(kc=256, row_cuts=2, column_cuts=1), 0.9, 1.2, 0.01),
    OUT: TuningResult("torch", 0.8, 0.8, 0.02),
}


@pytest.fixture
def two_threads():
    """Use the number of threads of the results above."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Provide an empty folder for tunings and a fixed key for this machine."""
    monkeypatch.setenv("DITHC_TUNING_FOLDER", str(tmp_path))
    monkeypatch.setattr(
        tuning, "this_machine", lambda: dataclasses.replace(KEY, threads=tuning.torch.get_num_threads())
    )
    tuning._choices.cache_clear()
    yield tmp_path
    tuning._choices.cache_clear()


def test_winner_must_exceed_the_margin_and_scatter():
    assert tuning.winner({"a": [0.90, 0.91, 0.89], "b": [0.95, 0.95, 0.95]}) == "a"
    assert tuning.winner({"a": [0.98, 0.98, 0.98]}) is None
    assert tuning.winner({"a": [1.5, 1.5, 1.5]}) is None
    assert tuning.winner({}) is None
    assert tuning.winner({"a": [0.6, 0.9, 1.4]}) is None  # its scatter exceeds the gain
    assert tuning.winner({"a": [0.6, 0.9, 1.4], "b": [0.95, 0.95, 0.95]}) == "b"


def test_saving_adds_products_and_replaces_duplicates(tmp_path):
    path = tmp_path / KEY.file_name
    tuning.save(path, KEY, RESULTS)
    tuning.save(path, KEY, {OUT: TuningResult(None, 1.0, 1.1, 0.03)})
    assert tuning.load(path, KEY) == {QKV: RESULTS[QKV], OUT: TuningResult(None, 1.0, 1.1, 0.03)}


@pytest.mark.parametrize(
    ("field", "value"),
    [("cpu", "another"), ("cores", 4), ("threads", 1), ("isa", "avx2"), ("dithc", "0.2.0"), ("abi", 3), ("caches", ())],
)
def test_tuning_file_of_a_different_machine_is_ignored_with_a_warning(field, value, tmp_path, caplog):
    other = dataclasses.replace(KEY, **{field: value})
    assert other.file_name != KEY.file_name
    path = tmp_path / "tuning.json"
    tuning.save(path, KEY, RESULTS)
    with caplog.at_level(logging.WARNING):
        assert tuning.load(path, other) == {}
    assert field in caplog.text
    assert "dithc tune-kernels" in caplog.text


def damaged_contents():
    good = {
        "format": tuning.FORMAT,
        "key": dataclasses.asdict(KEY),
        "products": [{**QKV._asdict(), **RESULTS[QKV]._asdict(), "choice": {"kc": 256}}],
    }
    yield "cut", json.dumps(good)[:-20]
    yield "not text", "\x00\x01"
    yield "a list", "[1, 2]"
    yield "a number", "3"
    yield "another format", json.dumps(good | {"format": 99})
    yield "no key", json.dumps({"format": 1, "products": []})
    for name, row in {
        "unknown layout": {"layout": "sideways"},
        "unknown choice": {"choice": "magic"},
        "unknown blocking": {"choice": {"mc": 1, "speed": 9}},
        "torch for a gradient that must be fp32": {"layout": "grad_weight", "dtype": "bf16", "choice": "torch"},
        "larger than an int of C": {"choice": {"kc": 2**31}},
        "part of a row": {"choice": {"kc": 1.5}},
        "a product without end": {"m": 2**31},
        "more cuts than threads": {"choice": {"row_cuts": 2, "column_cuts": 2}},
        "more threads than there are": {"choice": {"num_threads": 3}},
        "negative blocking": {"choice": {"mc": -1}},
        "a cut of clusters that there is not": {"choice": {"cluster_cut": 3}},
        "blocking of words": {"choice": {"mc": "many"}},
    }.items():
        yield name, json.dumps(good | {"products": [good["products"][0] | row]})


@pytest.mark.parametrize("content", [pytest.param(text, id=name) for name, text in damaged_contents()])
def test_damaged_file_is_ignored_with_a_warning_and_fix(content, tmp_path, caplog):
    path = tmp_path / "tuning.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert tuning.load(path, KEY) == {}
    assert str(path) in caplog.text
    assert "fix" in caplog.text


def test_tuned_products_use_the_file_and_untuned_use_the_default(folder, two_threads):
    key = tuning.this_machine()
    tuning.save(folder / key.file_name, key, RESULTS)
    assert tuning.choice(*QKV) == RESULTS[QKV].choice
    assert tuning.choice(*OUT) == "torch"
    assert tuning.choice(*QKV._replace(m=7)) is None


RULE_WON = {QKV: RESULTS[QKV]._replace(choice=None)}


@pytest.mark.parametrize(("results", "counts"), [(RESULTS, (2, 2, 1)), (RULE_WON, (0, 1, 0))])
def test_summary_contains_file_and_product_counts(results, counts, folder, two_threads):
    assert tuning.summary() is None
    key = tuning.this_machine()
    tuning.save(folder / key.file_name, key, results)
    counted = "{} of {} product(s) tuned, {} served by torch".format(*counts)
    assert tuning.summary() == f"tuning file {folder / key.file_name}: {counted}"
    assert tuning.choice(*QKV) == results[QKV].choice


def test_tuning_folder_off_disables_tuning(folder, monkeypatch):
    key = tuning.this_machine()
    tuning.save(folder / key.file_name, key, RESULTS)
    monkeypatch.setenv("DITHC_TUNING_FOLDER", "off")
    assert tuning.path_of(key) is None
    assert tuning.choice(*QKV) is None


def test_tuning_file_path_is_in_the_user_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("DITHC_TUNING_FOLDER", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuning.path_of(KEY) == tmp_path / "dithc" / "tuning" / KEY.file_name
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.path_of(KEY) == tmp_path / ".cache" / "dithc" / "tuning" / KEY.file_name


def test_use_blocking_is_restored_at_block_end(folder):
    with tuning.use_blocking("torch"):
        assert tuning.choice(*QKV) == "torch"
        with tuning.use_blocking(None):
            assert tuning.choice(*QKV) is None
    assert tuning.choice(*QKV) is None
