"""Tests of a codec of an installed package: results of its network, and its validation before any work."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dithc.core.logging import UserError
from dithc.latents import open_codec
from tests.plugin_packages import MODULE, FoldedCodec, install_plugin

INFO = {
    "bands": ["B", "G", "R", "N"],
    "size": 16,
    "scale": 1.0,
    "offset": 0.0,
    "statistics": [{"low": 0.0, "high": 1.0}] * 4,
    "display": {"bands": ["R", "G", "B"], "low": 0.0, "high": 1.0},
}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, codecs={"folded": f"{MODULE}:FoldedCodec"})


def folded(**settings: Any) -> FoldedCodec:
    return FoldedCodec.model_validate({"kind": "folded", "latent_channels": 16} | settings)


def test_latents_are_normalized_and_decode_to_the_input() -> None:
    codec = open_codec(folded(shift_factor=0.25, scaling_factor=2.0), info=INFO)
    x = torch.rand(3, 4, 16, 16) * 2 - 1
    mean, logvar = codec.encode(x)
    torch.testing.assert_close(mean, (torch.pixel_unshuffle(x, 2) - 0.25) * 2.0)
    assert logvar is None
    torch.testing.assert_close(codec.decode(mean), x)
    assert (codec.latent_channels, codec.downsampling_factor, codec.bands) == (16, 2, ("B", "G", "R", "N"))


def test_id_depends_on_package_version_settings_and_file_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"one")
    ids = [
        open_codec(settings, info=INFO).id
        for settings in (folded(), folded(scaling_factor=2.0), folded(path=str(weights)))
    ]
    weights.write_bytes(b"two")
    ids += [open_codec(folded(path=str(weights)), info=INFO).id]
    monkeypatch.setattr("sys.path", [name for name in __import__("sys").path if "site-mine" not in name])
    install_plugin(tmp_path, monkeypatch, version="1.1", codecs={"folded": f"{MODULE}:FoldedCodec"})
    ids += [open_codec(folded(), info=INFO).id]
    assert len(set(ids)) == 5
    assert all(name.startswith("folded-") for name in ids)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"defect": "raises"},
            r"'folded' of dithc.codecs \(tests.plugin_packages.FoldedCodec\) fails in `network`[\s\S]*KeyError",
        ),
        ({"defect": "batch"}, "depends on the other tiles of its batch"),
        ({"defect": "shape"}, r"\(2, 15, 8, 8\)"),
        ({"latent_channels": 8}, r"latent_channels` 8"),
        ({"path": "nowhere"}, "`path` of folded"),
    ],
)
def test_plugin_codec_that_contradicts_the_settings_is_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_codec(folded(**settings), info=INFO)
