"""Layers that are measured and tuned, compared with the layers of the model."""

import torch
from torch import nn

from dithc.bench.operators.shapes import MODULES, PASSES, LinearShape, all_layers, module_layers
from dithc.model import PRESETS, DiT


def test_module_layers_match_the_papers_table_4():
    layers = module_layers(PRESETS["DiT-XL/2"], batch=4)
    assert [layer.name for layer in layers] == list(MODULES)
    sizes = [(layer.in_features, layer.out_features) for layer in layers]
    assert sizes == [(1152, 3456), (1152, 1152), (1152, 4608), (4608, 1152), (1152, 6912)]
    assert [layer.rows for layer in layers] == [1024, 1024, 1024, 1024, 4]


def test_all_layers_cover_every_linear_layer_of_the_model():
    with torch.device("meta"):
        model = DiT.from_preset("DiT-S/2")
    weights = {tuple(m.weight.flatten(1).shape) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert {(layer.out_features, layer.in_features) for layer in all_layers(model.config, batch=2)} == weights


def test_three_products_of_a_layer_have_equal_flops():
    layer = LinearShape("up", 1024, 1152, 4608)
    assert layer.product("forward") == (1024, 4608, 1152)
    assert layer.product("grad_input") == (1024, 1152, 4608)
    assert layer.product("grad_weight") == (4608, 1152, 1024)
    for direction in PASSES:
        m, n, k = layer.product(direction)
        assert 2 * m * n * k == layer.flop
