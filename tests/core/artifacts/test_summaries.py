"""Numbers of manifests: invalid numbers are rejected by every reader."""

import math
from pathlib import Path
from typing import Any

import pytest

from dithc.core.artifacts import Manifest, summaries
from dithc.core.logging import UserError

COMPARED = {"extractor": "own", "sha256": "a" * 64, "resize": "none", "comparable_to_published": False}
# Valid numbers of each stage.
GOOD: dict[str, dict[str, Any]] = {
    "synthesize": {"files": 3, "bytes": 2**40},
    "ingest": {"scenes": 3, "accepted": 2, "rejected": {"too small": 1}, "notes": {}, "bands": ["B02"]},
    "tiles": {"accepted": 2, "rejected": {}, "splits": {"train": 2}, "bands": ["B02"], "size": 32},
    "codec": {"steps": 2, "loss": 0.5, "ndvi_error": None, "psnr_db_by_band": {"B02": 30}},
    "latents": {"count": 2, "shape": [4, 8, 8], "scale": 1.5, "mean": [0.5, 0]},
    "train": {"step": 2, "seconds_per_step_median": 0.5, "model": {"depth": 2}, "skipped_steps": []},
    "sample": {"images": 2, "rendering_digest": "0123", "checkpoint": 20, "guidance_interval": [0, 0.5]},
    "restore": {"scenes": 1, "members": 2, "bands": ["B02"], "scores": {"rmse": 0.5}},
    "extractor": {"path": "own.safetensors", "classes": [-1, 2], "loss": 0.5},
    "features": {**COMPARED, "n": 2, "images_per_second": None},
    "fid": {**COMPARED, "fid": 2, "n_real": 2, "n_generated": 2, "kid_interval": [0.1, 0.2]},
}
WRONG = [
    ("tiles", {"rejected": {"cloud": "many"}}),
    ("codec", {"loss": "0.5"}),
    ("train", {"step": 2.5}),
    ("train", {"step": True}),
    ("train", {"step": -1}),
    ("train", {"step": 10**400}),
    ("train", {"val_loss": 10**400}),
    ("sample", {"guidance_interval": [0.1, 0.2, 0.3]}),
    ("sample", {"checkpoint": None}),
    ("fid", {"fid": None}),
    ("fid", {"kid_interval": [0.1, None]}),
    ("fid", {"comparable_to_published": "yes"}),
    ("fid", {"fid": math.nan}),
    ("train", {"val_loss": math.inf}),
]


@pytest.mark.parametrize("stage", GOOD)
def test_numbers_of_a_stage_are_read_as_written(stage: str, tmp_path: Path) -> None:
    numbers = GOOD[stage] | {"of a later version": {"any": [None]}}
    Manifest(stage=stage, name="a", spec={}, summary=numbers).write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json").summary == numbers


@pytest.mark.parametrize(
    ("stage", "key"),
    [(stage, key) for stage in GOOD for key in sorted(summaries.SUMMARY_TYPES[stage].__required_keys__)],
)  # type: ignore[attr-defined]  # of a TypedDict
def test_missing_number_is_rejected_with_the_key(stage: str, key: str, tmp_path: Path) -> None:
    numbers = {name: value for name, value in GOOD[stage].items() if name != key}
    Manifest(stage=stage, name="a", spec={}, summary=numbers).write(tmp_path / "manifest.json")
    with pytest.raises(
        UserError, match=rf"{tmp_path}/manifest.json: invalid `summary\.{key}`[\s\S]*no such key[\s\S]*fix"
    ):
        Manifest.read(tmp_path / "manifest.json")


@pytest.mark.parametrize(("stage", "wrong"), WRONG)
def test_number_of_wrong_type_is_rejected_with_the_key(stage: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"manifest.json: invalid `summary\.{next(iter(wrong))}` of stage '{stage}'"):
        summaries.check(GOOD[stage] | wrong, stage=stage, path=Path("manifest.json"))
