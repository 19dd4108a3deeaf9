"""Scaling benchmark: resources, losses and communication of ranks; oversubscription. Tests do not check times."""

import json
from types import SimpleNamespace

import pytest

from dithc.bench import summary
from dithc.bench.training.run import TrainingResult
from dithc.bench.training.scaling import ScalingSettings, agreement, curve, variants_on
from dithc.cli import main
from dithc.model import DiT, flops_per_image
from tests.ranks import needs_launcher

SMALL = {"hidden_size": 64, "depth": 1, "num_heads": 2}
TINY = ["--models", "S/2", *(f"--override={name}={value}" for name, value in SMALL.items()), "--rounds", "1"]


def machine(cores: int):
    """Return a node with this number of cores of two CPUs each; one CPU per core is allowed."""
    every = [SimpleNamespace(index=n, cpus=(n, n + cores)) for n in range(cores)]
    return SimpleNamespace(visible_cores=every, limits=SimpleNamespace(allowed_cpus=tuple(range(2 * cores - 1))))


def settings(mode: str = "weak", **more) -> ScalingSettings:
    return ScalingSettings(mode=mode, **({"models": ("DiT-S/2",), "batch": 4} | more))


@pytest.mark.parametrize(
    ("cores", "more", "expected"),
    [
        (
            8,
            {"ranks": (1, 2, 4)},
            [(1, 2, (0, 8, 1, 9), False), (1, 2, (0, 8, 1, 9, 2, 10, 3, 11), False), (1, 2, None, False)],
        ),
        (2, {"ranks": (1, 2, 4)}, [(1, 1, (0, 2), False), (1, 1, None, False), (1, 1, None, True)]),
        (
            2,
            {"ranks": (1, 4, 8), "launcher": "srun", "ranks_per_node": 4, "cpus_per_rank": 38},
            [(1, 38, None, False), (1, 38, None, False), (2, 38, None, False)],
        ),
    ],
)
def test_ranks_have_equal_cores_and_fill_nodes(cores, more, expected):
    found = variants_on(machine(cores), settings(**more))
    assert [(one.nodes, one.cpus, one.allowed, one.is_oversubscribed) for one in found] == expected
    assert {one.launcher for one in found} == {more.get("launcher", "mpiexec")}


def ran(seconds: list[float], *, ranks: int, losses=(1.0,), norms=(0.5,), exposed=(), pairs=None) -> TrainingResult:
    """Return a run with the form of its result file; rank 1 waits twice as long as rank 0."""
    each = [{"exchange": {"exposed_seconds": [(rank + 1) * wait for wait in exposed]}} for rank in range(ranks)]
    result = {"each_rank": each if exposed else [{}] * ranks, "grad_norms": list(norms), "pairs": pairs}
    return TrainingResult(seconds=seconds, losses=list(losses), result=result)


def curve_of(chosen: ScalingSettings, runs):
    named = {f"{ranks} rank(s)": results for ranks, results in runs.items()}
    return curve("DiT-S/2", chosen, variants_on(machine(4), chosen), named)


def test_weak_efficiency_is_per_round_and_both_flop_rates_are_reported():
    runs = {1: [ran([2.0], ranks=1), ran([4.0], ranks=1)], 2: [ran([2.5], ranks=2), ran([8.0], ranks=2)]}
    one, two = curve_of(settings(), runs)["points"]
    assert (one["efficiency"], two["efficiency_spread"]["rounds"]) == (1.0, [0.8, 0.5])
    assert two["efficiency"] == pytest.approx(0.65)
    flops = flops_per_image(DiT.from_preset("DiT-S/2").config)
    assert (two["images"], two["seconds"]) == (8, 5.25)
    assert two["flops_per_second"] == pytest.approx(8 * flops.training_total / 5.25)
    assert two["linear_flops_per_second"] == pytest.approx(8 * flops.training_linear / 5.25)


def test_strong_efficiency_is_speedup_per_rank_at_constant_batch():
    found = curve_of(settings("strong"), {1: [ran([2.0], ranks=1)], 2: [ran([1.25], ranks=2)]})
    assert found["points"][1]["efficiency"] == pytest.approx(0.8)
    assert (found["points"][1]["images"], found["global_batch_size"]) == (4, 4)


def test_wrong_gradient_norm_is_detected_despite_equal_losses():
    runs = {
        1: [ran([2.0], ranks=1)],
        2: [ran([1.0], ranks=2, losses=(1.0 + 1e-9,))],
        4: [ran([0.5], ranks=4, norms=(0.25,))],
    }
    points = curve_of(settings("strong", ranks=(1, 2, 4)), runs)["points"]
    assert [point["same_training"]["same"] for point in points] == [True, True, False]
    assert agreement([1.0, 2.0], [1.0, 2.2], tolerance=0.05)["largest_difference"] == pytest.approx(0.1)


def test_exposed_seconds_use_the_longest_wait_and_pairs_become_ratios():
    pairs = {"together": [2.0, 3.0], "alone": [1.0, 2.0], "exposed_seconds": [0.2, 0.6]}
    runs = {1: [ran([1.0], ranks=1)], 2: [ran([2.0], ranks=2, exposed=(0.1, 0.3, 0.2), pairs=pairs)]}
    one, two = curve_of(settings(), runs)["points"]
    assert (one["exposed_seconds"], one["no_communication_baseline"]) == (0.0, None)
    assert two["exposed_seconds"] == pytest.approx(0.4)
    assert two["no_communication_baseline"]["ratio"]["rounds"] == [2.0, 1.5]
    assert two["no_communication_baseline"]["exposed_share"]["rounds"] == pytest.approx([0.1, 0.2])


def test_oversubscribed_points_lack_efficiency_and_failures_have_reasons():
    runs = {
        1: [ran([1.0], ranks=1)],
        2: [TrainingResult(status="failed", reason="status 1; gone")],
        8: [ran([9.0], ranks=8)],
    }
    found = curve_of(settings(ranks=(1, 2, 8)), runs)
    assert [point["efficiency"] for point in found["points"]] == [1.0, None, None]
    known = {"mode": "weak", "strategy": "cftp", "dtype": "fp32", "batch": 4, "rounds": 1, "steps": 3}
    text = summary({"bench": "scaling", "settings": known, "curves": [found]}).text()
    assert "S/2, 2 rank(s): failed: status 1; gone" in text
    assert "8 rank(s) are oversubscribed: for correctness only" in text


def test_scaling_requires_the_weak_or_strong_option(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "scaling"])
    assert "--weak" in capsys.readouterr().err


@pytest.mark.sampled("benches")
@pytest.mark.slow
@pytest.mark.mpi
@needs_launcher
def test_one_two_and_four_ranks_train_to_equal_losses_and_norms(tmp_path, capsys):
    path = tmp_path / "strong.json"
    arguments = ["bench", "scaling", "--strong", *TINY, "--ranks", "1,2,4", "--batch", "4", "--steps", "2"]
    assert main([*arguments, "--no-communication-baseline", "--json", str(path)]) == 0
    one, two, four = json.loads(path.read_text())["curves"][0]["points"]
    assert [point["status"] for point in (one, two, four)] == ["ok"] * 3
    assert all(point["same_training"]["same"] for point in (one, two, four))
    assert len(set(two["losses"])) == len(two["losses"]) == 4
    assert two["grad_norms"] != one["grad_norms"] or two["losses"] != one["losses"], (
        "two ranks must sum in another order"
    )
    assert one["exposed_seconds"] == 0.0
    assert len(two["no_communication_baseline"]["ratio"]["rounds"]) == 2
    assert all(rank["exchange"]["comm_bytes"] == [two["each_rank"][0][0]["exchange"]["comm_bytes"][0]] * 2
               for rank in two["each_rank"][0])  # fmt: skip
    assert four["efficiency"] is None or not four["oversubscribed"]
    assert "the same losses and gradient norms as with the fewest" in capsys.readouterr().out
