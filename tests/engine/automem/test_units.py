"""Tests of units: repeated blocks and separately called modules, in any tree of modules."""

from torch import nn

from dithc.engine.automem.units import units_of
from dithc.model import DiT


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in units_of(model)]


def test_dit_units_are_embedders_blocks_and_final_layer() -> None:
    model = DiT.from_preset("DiT-S/2", hidden_size=32, num_heads=2, depth=3, input_size=8, num_classes=3)
    blocks = [f"blocks.{index}" for index in range(3)]
    assert names(model) == ["x_embedder", "t_embedder", "y_embedder", *blocks, "final_layer"]


def test_large_nested_blocks_are_split_and_small_blocks_are_not() -> None:
    from diffusers import UNet2DModel

    unet = UNet2DModel(
        sample_size=16,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
    )
    found = names(unet)
    assert "down_blocks.0" in found
    assert "up_blocks.0" not in found
    assert "up_blocks.0.resnets.1" in found


def test_units_are_disjoint_and_cover_every_listed_module() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.ModuleDict({"a": nn.Linear(8, 8)}), nn.Linear(8, 2)
    )
    found = names(model)
    assert found == ["0.0", "0.1", "1.a", "2"]
    assert not any(one != two and one.startswith(f"{two}.") for one in found for two in found)


def test_module_in_two_places_is_one_unit() -> None:
    shared = nn.Linear(4, 4)
    assert len(names(nn.Sequential(shared, nn.Tanh(), shared))) == 2


def test_model_without_submodules_is_a_single_unit() -> None:
    assert names(nn.Linear(3, 3)) == [""]
    assert names(nn.Module()) == [""]
    assert names(nn.ModuleList()) == []
