"""Tests of error reports: ranks with the same error log it once, and a different error is never hidden."""

from pathlib import Path

import pytest

from dithc.comm import ending
from dithc.comm.environment import STARTED_VARIABLE


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv(STARTED_VARIABLE, str(tmp_path / "met"))
    monkeypatch.setenv("PMI_RANK", "1")
    return monkeypatch


def test_the_same_error_is_said_in_few_words_by_every_other_rank(rank: pytest.MonkeyPatch) -> None:
    assert ending.once("a\nb") == "a\nb"
    assert ending.once("a\nb") == "rank 1: the same error"
    rank.setenv("PMI_RANK", "2")
    assert ending.once("a\nb") == "rank 2: the same error"


def test_an_error_that_differs_in_one_character_is_said_in_full(rank: pytest.MonkeyPatch) -> None:
    ending.once("line 1")
    assert ending.once("line 2") == "line 2"


def test_nothing_is_left_out_without_dithc_launch_or_a_place_to_write(rank: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rank.setenv(STARTED_VARIABLE, str(tmp_path / "no folder" / "met"))
    assert [ending.once("x"), ending.once("x")] == ["x", "x"]
    rank.delenv(STARTED_VARIABLE)
    assert [ending.once("x"), ending.once("x")] == ["x", "x"]
