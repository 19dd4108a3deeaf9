"""Tests of units: repeated blocks and separately called modules, in any tree of modules."""

from torch import nn

from dithc.engine.automem.units import units_of
from dithc.model import DiT


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in units_of(model)]


def test_units_of_a_dit() -> None:
    model = DiT.from_preset("DiT-S/2", hidden_size=32, num_heads=2, depth=3, input_size=8, num_classes=3)
    blocks = [f"blocks.{index}" for index in range(3)]
    assert names(model) == ["x_embedder", "t_embedder", "y_embedder", *blocks, "final_layer"]


def test_large_parts_of_nested_lists_are_cut_and_small_ones_are_not() -> None:
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


def test_no_unit_holds_another_and_together_they_hold_every_weight_of_a_list() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.ModuleDict({"a": nn.Linear(8, 8)}), nn.Linear(8, 2)
    )
    found = names(model)
    assert found == ["0.0", "0.1", "1.a", "2"]
    assert not any(one != two and one.startswith(f"{two}.") for one in found for two in found)


def test_module_in_two_places_is_one_unit() -> None:
    shared = nn.Linear(4, 4)
    assert len(names(nn.Sequential(shared, nn.Tanh(), shared))) == 2


def test_model_without_parts_is_its_own_unit() -> None:
    assert names(nn.Linear(3, 3)) == [""]
    assert names(nn.Module()) == [""]
    assert names(nn.ModuleList()) == []
