"""Tests of checkpoint adaptation: kept and new parts, reported changes, and rejected checkpoints."""

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.model import DiT, adapt_state_dict, official_state_dict
from tests.model.networks import nonzero

TABLE = "y_embedder.embedding_table.weight"


def _run(model: DiT, x: Tensor, label: int = 0) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(x, torch.full((len(x),), 300), torch.full((len(x),), label))
    return out


def _adapted(old: DiT, new: DiT, **options: object) -> list[str]:
    state, changes = adapt_state_dict(old.state_dict(), new, **options)  # type: ignore[arg-type]
    new.load_state_dict(state, strict=True)
    return changes


def test_same_task_is_loaded_unchanged_without_reported_changes() -> None:
    old, new = nonzero(0), nonzero(1)
    assert _adapted(old, new) == []
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(_run(old, x), _run(new, x))


def test_new_class_count_reinitializes_the_table_and_keeps_the_null_row() -> None:
    old, new = nonzero(0), nonzero(1, num_classes=5)
    initial = new.state_dict()[TABLE].clone()
    changes = _adapted(old, new)
    assert changes == ["class table reinitialized: 3 classes in the checkpoint, 5 now", "null label kept"]
    assert torch.equal(new.state_dict()[TABLE][:5], initial[:5])
    assert torch.equal(new.state_dict()[TABLE][5], old.state_dict()[TABLE][3])
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(_run(old, x, label=3), _run(new, x, label=5))


def test_null_row_is_dropped_or_initialized_to_match_the_model() -> None:
    with_null, without = nonzero(0), nonzero(1, class_dropout_prob=0.0)
    assert _adapted(with_null, without) == ["null label dropped: the model has no row for it"]
    assert torch.equal(without.state_dict()[TABLE], with_null.state_dict()[TABLE][:3])
    new = nonzero(2)
    initial = new.state_dict()[TABLE][3].clone()
    changes = _adapted(without, new, source=without.config)
    assert changes == ["null label initialized: the checkpoint has no row for it"]
    assert torch.equal(new.state_dict()[TABLE][3], initial)
    assert torch.equal(new.state_dict()[TABLE][:3], without.state_dict()[TABLE])


@pytest.mark.parametrize("learn_sigma", [False, True])
def test_added_channels_start_at_zero_and_preserve_predictions(learn_sigma: bool) -> None:
    old, new = nonzero(0, learn_sigma=learn_sigma), nonzero(1, in_channels=6, learn_sigma=learn_sigma)
    changes = _adapted(old, new)
    assert changes == [
        "patch embedding: first 4 channels kept, 2 initialized to zero",
        "final layer: first 4 channels kept, 2 initialized to zero",
    ]
    x = torch.randn(2, 6, 8, 8)
    before, after = _run(old, x[:, :4]), _run(new, x)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not after[:, 4:6].any()
    if learn_sigma:
        torch.testing.assert_close(after[:, 6:10], before[:, 4:])
        assert not after[:, 10:].any()


def test_reduced_channel_count_keeps_the_first_channels() -> None:
    old, new = nonzero(0), nonzero(1, in_channels=3)
    changes = _adapted(old, new)
    assert changes == [
        "patch embedding: first 3 channels kept, 1 dropped",
        "final layer: first 3 channels kept, 1 dropped",
    ]
    x = torch.randn(2, 4, 8, 8)
    x[:, 3] = 0
    before, after = _run(old, x), _run(new, x[:, :3])
    torch.testing.assert_close(after, torch.cat([before[:, :3], before[:, 4:7]], dim=1))


def test_sigma_channels_are_initialized_to_zero_or_dropped() -> None:
    plain, learned = nonzero(0, learn_sigma=False), nonzero(1)
    x = torch.randn(2, 4, 8, 8)
    expected = _run(plain, x)
    assert _adapted(plain, learned) == ["final layer: sigma initialized to zero"]
    torch.testing.assert_close(_run(learned, x)[:, :4], expected)
    assert not _run(learned, x)[:, 4:].any()
    plain_again = nonzero(2, learn_sigma=False)
    assert _adapted(learned, plain_again) == ["final layer: sigma dropped"]
    torch.testing.assert_close(_run(plain_again, x), expected)


@pytest.mark.parametrize(("before", "after"), [(8, 16), ((4, 16), (16, 4)), ((4, 16), 8)])
def test_different_input_size_recomputes_the_position_embedding(before: object, after: object) -> None:
    old, new = nonzero(0, input_size=before), nonzero(1, input_size=after)
    initial = new.pos_embed.clone()
    rows, columns = new.config.grid
    assert _adapted(old, new) == [f"position embedding recomputed for a grid of {rows} x {columns} patches"]
    assert torch.equal(new.pos_embed, initial)


def test_adaptation_modifies_neither_checkpoint_nor_model() -> None:
    old, new = nonzero(0), nonzero(1, num_classes=5, in_channels=6)
    given, model_state = old.state_dict(), {key: value.clone() for key, value in new.state_dict().items()}
    before = {key: value.clone() for key, value in given.items()}
    adapt_state_dict(given, new)
    assert all(torch.equal(given[key], before[key]) for key in before)
    assert all(torch.equal(new.state_dict()[key], model_state[key]) for key in model_state)


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        ({"hidden_size": 64}, "hidden_size"),
        ({"depth": 3}, "depth"),
        ({"depth": 1}, "depth"),
        ({"patch_size": 4}, "patch_size"),
        ({"mlp_ratio": 2.0}, "MLP width"),
    ],
)
def test_different_architecture_is_rejected_by_setting_name(overrides: dict[str, object], setting: str) -> None:
    with pytest.raises(UserError, match=f"does not fit the model: {setting}"):
        adapt_state_dict(nonzero(0, **overrides).state_dict(), nonzero(1))


def test_different_head_count_is_rejected_with_a_source_config() -> None:
    old = nonzero(0, num_heads=4)
    with pytest.raises(UserError, match="num_heads"):
        adapt_state_dict(old.state_dict(), nonzero(1), source=old.config)


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        (
            {"extra.weight": (1,), "t_embedder.mlp.2.bias": None},
            "missing: t_embedder.mlp.2.bias; unknown: extra.weight",
        ),
        ({"blocks.1.attn.proj.bias": (3,)}, "blocks.1.attn.proj.bias"),
        ({"final_layer.linear.weight": (12, 32)}, "output channels"),
    ],
)
def test_mismatched_weight_names_and_shapes_are_reported(shapes: dict[str, tuple[int, ...] | None], named: str) -> None:
    state = nonzero(0).state_dict() | {name: shape and torch.zeros(shape) for name, shape in shapes.items()}
    with pytest.raises(UserError, match=named):
        adapt_state_dict({name: value for name, value in state.items() if value is not None}, nonzero(1))


def test_official_checkpoint_formats_are_recognized() -> None:
    ema, raw = nonzero(0).state_dict(), nonzero(1).state_dict()
    training = {"model": {f"module.{key}": value for key, value in raw.items()}, "ema": ema, "opt": {}, "args": None}
    assert official_state_dict(training).keys() == ema.keys()
    assert torch.equal(official_state_dict(training)[TABLE], ema[TABLE])
    assert torch.equal(official_state_dict(training, weights="model")[TABLE], raw[TABLE])
    assert torch.equal(official_state_dict(ema)[TABLE], ema[TABLE])


@pytest.mark.parametrize("checkpoint", [None, [], {}, {"ema": None, "step": 3}, {"model": {"a": torch.zeros(1)}}])
def test_invalid_checkpoint_objects_are_rejected(checkpoint: object) -> None:
    with pytest.raises(UserError, match="checkpoint"):
        official_state_dict(checkpoint)
