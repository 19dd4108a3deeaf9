"""Tests of managed memory: a training run ends in the same bytes with and without AutoMem."""

import gc
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dithc.config import training
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.engine.automem.planning.planner import Plan
from dithc.engine.comm import Group
from dithc.engine.hardware import description, discover_machine
from dithc.engine.memory import Tiers, streamed_tensors
from dithc.train import background, memory_tiers, train
from dithc.train.job import DONE
from dithc.train.memory_tiers import PLAN_FILE, TrainingMemory
from tests.train import faults
from tests.train.conftest import assert_equal, config_of, hashes, rows, store_of, tensors_of
from tests.train.strategies.test_strategies import several_ranks, train_on_ranks

ROOT = Path(__file__).parent.parent.parent
GIB = 1 << 30
STEPS = 4
# With 1,024 tokens per rank some activations exceed 1 MiB, and come from the pool. All tensors would take 23 MiB.
MODEL = {"preset": "DiT-S/2", "hidden_size": 128, "depth": 2, "num_heads": 2}
IMAGES = 64
WARM_UP = 2  # recorded steps before a plan exists
BUDGET = 10 << 20
TIGHT = training.MemoryConfig(fast_memory_gib=BUDGET / GIB)


@pytest.fixture
def opened_tiers(monkeypatch) -> list[Tiers]:
    """Return the tiers opened by training runs of this process, in order."""
    found: list[Tiers] = []

    def open_and_keep(chain):
        found.append(Tiers(chain))
        return found[-1]

    monkeypatch.setattr(memory_tiers, "Tiers", open_and_keep)
    return found


@pytest.fixture(autouse=True)
def _no_leaks(opened_tiers):
    yield
    gc.collect()
    assert [tier.counters().used_bytes for tiers in opened_tiers for tier in tiers] == [0] * sum(map(len, opened_tiers))


@pytest.fixture
def wide(job):
    """Return a factory of jobs with activations that are worth moving."""

    def make(store: str, **changes):
        settings = {
            "model": MODEL,
            "steps": STEPS,
            "until": STEPS,
            "global_batch_size": IMAGES,
            "checkpoint_every": STEPS,
        }
        return job(store, **(settings | changes))

    return make


def losses(job) -> list[float]:
    return [row["loss"] for row in rows(job)]


def plan_of(job) -> Plan:
    return Plan.from_dict(json.loads((store_of(job).folder / PLAN_FILE).read_text())["plan"])


@pytest.mark.sampled
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"micro_batch_size": 32},
        {"activation_checkpointing": "block"},
        {"dtype": "bf16"},
        {"model": MODEL | {"preset": "ModernDiT-S/2", "qk_norm": True}, "micro_batch_size": 32},
    ],
    ids=["plain", "micro-batches", "recompute", "bf16", "modern"],
)
def test_managed_training_is_byte_identical_to_unmanaged(wide, make_latents, tmp_path, settings):
    settings |= {"latents": make_latents(tmp_path / "held-out", held_out=2)}
    plain, managed = wide("plain", **settings), wide("managed", memory=TIGHT, validate_every=1, **settings)
    assert [train(one, Group()) for one in (plain, managed)] == [DONE, DONE]
    assert losses(managed) == losses(plain)
    assert hashes(managed) == hashes(plain)
    assert Manifest.read(managed.paths.out).digest == Manifest.read(plain.paths.out).digest
    assert not plan_of(managed).everything_resident
    held_out = [row["val_loss"] for row in rows(managed)]
    assert held_out == sorted(held_out, reverse=True)


@pytest.mark.sampled
@pytest.mark.parametrize("settings", [{}, {"micro_batch_size": 32}], ids=["plain", "micro-batches"])
def test_training_with_state_in_a_file_is_byte_identical_to_unmanaged(wide, tmp_path, monkeypatch, settings):
    monkeypatch.setattr(streamed_tensors, "MIN_BYTES", 1 << 12)
    monkeypatch.setattr(streamed_tensors, "PIECE_BYTES", 1 << 16)
    memory = training.MemoryConfig(fast_memory_gib=BUDGET / GIB, spill_folder=str(tmp_path), spill_gib=64 / 1024)
    plain, managed = wide("plain", **settings), wide("managed", memory=memory, **settings)
    assert [train(one, Group()) for one in (plain, managed)] == [DONE, DONE]
    assert losses(managed) == losses(plain)
    assert hashes(managed) == hashes(plain)
    state = plan_of(managed).phases[-1].slow_parts["state"]
    assert 0 < state < rows(managed)[-1]["loaded_bytes"], "state is loaded in pieces"


@pytest.mark.slow
def test_metrics_plan_and_log_report_transfers_within_the_budget(wide, caplog):
    plain, managed = wide("plain"), wide("managed", memory=TIGHT)
    with caplog.at_level("INFO", logger="dithc"):
        for one in (plain, managed):
            train(one, Group())
    followed = rows(managed)[WARM_UP:]
    assert all(row["offloaded_bytes"] > 0 and row["loaded_bytes"] > 0 for row in followed)
    assert all(0 < row["fast_peak_bytes"] <= BUDGET for row in rows(managed))
    assert all(row["stall_seconds"] >= 0 and row["spills"] >= 0 for row in followed)
    assert "loaded_bytes" not in rows(plain)[0]
    numbers = Manifest.read(managed.paths.out).summary
    assert 0 < numbers["fast_peak_bytes"] <= BUDGET
    assert numbers["offloaded_bytes_median"] > 0
    assert Manifest.read(plain.paths.out).summary["offloaded_bytes_median"] is None
    found = json.loads((store_of(managed).folder / PLAN_FILE).read_text())
    assert [tier["budget_bytes"] for tier in found["tiers"]] == [BUDGET, None]
    assert found["trace"]["units"]
    plan = Plan.from_dict(found["plan"])
    assert any("exp_avg_sq.blocks.0.mlp.fc1.weight" in name for name in plan.state)
    assert caplog.text.count(plan.describe().splitlines()[0]) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("first", [TIGHT, None], ids=["managed first", "plain first"])
def test_managed_and_unmanaged_runs_resume_each_checkpoint_bit_exactly(wide, first):
    second = TIGHT if first is None else None
    whole = wide("whole", checkpoint_every=2)
    parts = [
        wide("parts", checkpoint_every=2, until=until, **({"memory": settings} if settings else {}))
        for until, settings in ((2, first), (STEPS, second))
    ]
    assert [train(one, Group()) for one in (whole, *parts)] == [DONE] * 3
    assert hashes(parts[1]) == hashes(whole)
    assert losses(parts[1]) == losses(whole)


@pytest.mark.sampled
@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_nonfinite_step_is_skipped_identically_with_managed_memory(wide, policy):
    settings = {"on_nonfinite": policy, "checkpoint_every": 2, "until": 5, "steps": 5}
    plain, managed = wide("plain", **settings), wide("managed", memory=TIGHT, **settings)
    faults.inject("latents", at=4, image=3)
    try:
        assert [train(one, Group()) for one in (plain, managed)] == [DONE, DONE]
    finally:
        faults.heal()
    assert hashes(managed) == hashes(plain)
    assert Manifest.read(managed.paths.out).summary["skipped_steps"] == [4]


def test_missing_spill_folder_is_rejected_before_training(wide, tmp_path):
    one = wide("store", memory=training.MemoryConfig(spill_folder=str(tmp_path / "missing"), spill_gib=0.1))
    with pytest.raises(UserError, match=r"missing[\s\S]*fix"):
        train(one, Group())
    assert not list(one.paths.store.glob("small-*"))


@pytest.mark.slow
def test_memory_configuration_of_the_machine_enables_the_memory_plan(wide, latents, tmp_path):
    """As started by the rules of the workflow."""
    config = config_of(tmp_path / "config.json", wide("store").run, machine={"memory": TIGHT.model_dump()})
    out = tmp_path / "store" / "step.json"
    arguments = ["--config", config, "--run", "small", "--latents", latents, "--out", out]
    done = subprocess.run(
        [sys.executable, "-m", "dithc", "train", *arguments, "--store", tmp_path / "store"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("memory plan") == 1
    assert Manifest.read(out).summary["fast_peak_bytes"] <= BUDGET
    assert "memory" not in json.dumps(Manifest.read(out).spec)


class TestOneTier:
    @pytest.fixture(autouse=True)
    def _one_node(self, monkeypatch):
        machine = discover_machine()
        ddr = tuple(tier for tier in machine.tiers if tier.kind == "ddr")[:1]
        monkeypatch.setattr(memory_tiers, "discover_machine", lambda: replace(machine, tiers=ddr))

    def test_automem_on_is_rejected_with_a_single_memory_tier(self):
        with pytest.raises(UserError, match=r"two tiers[\s\S]*fast_memory_gib"):
            TrainingMemory(training.MemoryConfig(automem="on"))

    def test_allow_recompute_without_effect_logs_a_warning(self, caplog):
        assert TrainingMemory(training.MemoryConfig(allow_recompute=True)).tiers is None
        assert "allow_recompute has no effect with a single memory tier" in caplog.text


def test_spill_file_stores_allocations_exceeding_the_memory_share(monkeypatch, tmp_path):
    machine = discover_machine()
    ddr = replace(next(tier for tier in machine.tiers if tier.kind == "ddr"), memory_bytes=16 << 20)
    monkeypatch.setattr(memory_tiers, "discover_machine", lambda: replace(machine, tiers=(ddr,)))
    settings = training.MemoryConfig(spill_folder=str(tmp_path), spill_gib=16 / 1024)
    with TrainingMemory(settings) as managed:
        kept = [managed.tiers.fast.empty((4 << 20,), torch.uint8) for _ in range(4)]
        assert [managed.tiers.tier_of(one).spec.kind for one in kept] == ["ddr"] * 3 + ["file"]
        del kept


def test_memory_settings_without_effect_log_a_warning(caplog):
    memory_of_run = TrainingMemory(training.MemoryConfig(automem="off", fast_memory_gib=1.0))
    assert memory_of_run.tiers is None
    assert "fast_memory_gib has no effect" in caplog.text


def test_ranks_of_a_node_split_the_fastest_tier_budget(opened_tiers, monkeypatch):
    machine = description.read(ROOT / "profiles" / "machines" / "lx2.yaml")
    monkeypatch.setattr(memory_tiers, "discover_machine", lambda: replace(machine, tiers=unbound))
    unbound = tuple(replace(tier, nodes=()) for tier in machine.tiers)  # this machine does not have these nodes
    for ranks in (1, 4):
        TrainingMemory(training.MemoryConfig(), group=Group(local_size=ranks)).close()
    whole, quarter = (tiers.fast.spec.budget_bytes for tiers in opened_tiers)
    assert quarter == pytest.approx(whole / 4, abs=1)


def test_copy_threads_use_distinct_cores_free_of_compute(monkeypatch):
    machine = description.read(ROOT / "profiles" / "machines" / "lx2.yaml")
    monkeypatch.setattr(background, "discover_machine", lambda: machine)
    free = background.free_cores()
    assert free
    assert len({cpu for cpus in free for cpu in cpus}) == len(free)


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    def test_managed_ranks_are_bit_identical_to_unmanaged(self, wide, tmp_path):
        cases: dict[str, dict[str, str | int]] = {
            "reducer": {},
            "zero1": {"sharding": "zero1"},
            "micro-batches": {
                "sharding": "zero1",
                "global_batch_size": 4 * IMAGES,
                "micro_batch_size": IMAGES,
                "steps": 3,
                "until": 3,
            },
            "recompute": {"sharding": "zero1", "activation_checkpointing": "block"},
            "layers": {"strategy": "dp+tp", "global_batch_size": IMAGES},
        }
        pairs = [
            (wide(f"{name}-plain", **settings), wide(f"{name}-managed", memory=TIGHT, **settings))
            for name, changes in cases.items()
            for settings in ({"strategy": "dp", "global_batch_size": 2 * IMAGES} | changes,)
        ]
        done = train_on_ranks(tmp_path, [one for pair in pairs for one in pair])
        assert done.returncode == 0, done.stderr
        for plain, managed in pairs:
            assert losses(managed) == losses(plain)
            assert_equal(tensors_of(managed), tensors_of(plain))
            assert not plan_of(managed).everything_resident
            if plain.machine.strategy == "dp":
                assert "gradients" in plan_of(managed).state, "the ranks' sums lie in a tier"
