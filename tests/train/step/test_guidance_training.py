"""Tests of guidance trained into one pass: its formula, affected images, fixed point, and no other traces."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dithc.config import MachineConfig, training
from dithc.core.logging import UserError
from dithc.core.tensor_files import read_tensors
from dithc.diffusion import Objective, training_loss
from dithc.engine import hcops
from dithc.engine.comm import Group
from dithc.latents import Batch
from dithc.model import DiT
from dithc.train import TrainingJob, train
from dithc.train.checkpoints import initial_state
from dithc.train.job import DONE
from dithc.train.pipeline import initial_weights
from dithc.train.step.guidance_training import GuidanceTraining, initial_copy
from dithc.train.step.step import Trainer, autocast_context
from dithc.train.strategies.layout import RankGrid
from dithc.train.strategies.strategy import Strategy
from tests.train.conftest import JOB_FIELDS, PATHS, SMALL, checkpoint, hashes, rows, small_run
from tests.train.strategies.test_strategies import BF16, FP32, assert_close, several_ranks, ten_steps, train_on_ranks

NULL = 3
SELF, START = {"reference": "self", "guidance": 5 / 3}, {"reference": "start", "guidance": 2.5}
BOTH = pytest.mark.parametrize("guide", [SELF, START], ids=["self", "start"])


def network(seed: int = 0, **settings: Any) -> DiT:
    """Return a small network with random weights only, so that labels matter."""
    torch.manual_seed(seed)
    sizes = {key: SMALL[key] for key in ("hidden_size", "depth", "num_heads")}
    model = DiT.from_preset("DiT-S/2", **sizes, input_size=8, num_classes=NULL, **settings)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2)
    return model


class Source:
    """Source of six images, two without a label."""

    def __init__(self, predict: str) -> None:
        draws = torch.Generator().manual_seed(1)
        t = torch.tensor([10, 200, 400, 700, 900, 999])
        self.all = Batch(
            torch.randn(6, 4, 8, 8, generator=draws),
            torch.tensor([0, NULL, 2, 1, NULL, 1]),
            t.float() + 0.25 if predict == "flow" else t,
            torch.randn(6, 4, 8, 8, generator=draws),
        )

    def batch(self, step: int, part: slice) -> Batch:
        one = self.all
        return Batch(one.x[part], one.y[part], one.t[part], one.noise[part])


def run_of(guide: dict[str, Any] | None, predict: str = "noise", **changes: Any) -> training.RunConfig:
    objective = {"prediction_type": predict, **({"loss_weighting": "min-snr"} if predict == "v" else {})}
    start = {"init_from_run": "base"} if guide is not None and guide["reference"] == "start" else {}
    model = SMALL | {"learn_sigma": predict != "flow"}
    return small_run(
        guidance_training=guide,
        objective=objective,
        model=model,
        global_batch_size=6,
        max_grad_norm=None,
        **start,
        **changes,
    )


def trainer_of(run: training.RunConfig, model: DiT, start: DiT | None = None) -> Trainer:
    strategy = Strategy(model, RankGrid())
    guide = None if run.guidance_training is None else GuidanceTraining(run, model, strategy, start=start)
    return Trainer(
        run=run,
        source=Source(run.objective.prediction_type),
        state=initial_state(model, run, strategy),
        group=Group(),
        guide=guide,
    )


def exact_loss(run: training.RunConfig, model: DiT, start: DiT | None, images: Batch) -> Tensor:
    """Return the mean squared error of the batch in float64 with complete passes, without `dithc.diffusion`."""
    kept = torch.from_numpy(np.cumprod(1 - np.linspace(1e-4, 2e-2, 1000)))[images.t.long()].reshape(-1, 1, 1, 1)
    x, noise, time = images.x.double(), images.noise.double(), (images.t.double() / 1000).reshape(-1, 1, 1, 1)
    predict = run.objective.prediction_type
    x_t = (1 - time) * x + time * noise if predict == "flow" else kept.sqrt() * x + (1 - kept).sqrt() * noise
    plain = {"noise": noise, "v": kept.sqrt() * noise - (1 - kept).sqrt() * x, "flow": noise - x}[predict]
    predicted = model(x_t, images.t, images.y)[:, :4]
    away = (start or model)(x_t, images.t, torch.full_like(images.y, NULL))[:, :4]
    assert run.guidance_training is not None
    low, high = run.guidance_training.interval or (0.0, 1.0)
    share = images.t.double() / (1000 if predict == "flow" else 999)
    guided = (images.y != NULL) & (low <= share) & (share <= high)
    moved = plain + (1 - 1 / run.guidance_training.guidance) * guided.reshape(-1, 1, 1, 1) * (predicted - away).detach()
    errors = ((moved - predicted) ** 2).mean((1, 2, 3))
    snr = (kept / (1 - kept)).flatten()
    weight = torch.clamp(snr, max=5) / (snr + 1) if predict == "v" else torch.ones(6)
    return (weight * errors).mean()


@BOTH
@pytest.mark.parametrize(
    ("predict", "more"),
    [("noise", {}), ("v", {"interval": [0.3, 0.8]}), ("flow", {"interval": [0.0, 0.75]})],
    ids=["noise", "v", "flow"],
)
def test_guided_loss_and_gradient_match_the_float64_formula(guide, predict, more):
    """Both predictions that move the target are constants; the variance has its loss without guidance."""
    model, run = network(learn_sigma=predict != "flow"), run_of(guide | more, predict)
    start = network(5, learn_sigma=predict != "flow") if guide is START else None
    exact, other = copy.deepcopy(model).double(), None if start is None else copy.deepcopy(start).double()
    truth = exact_loss(run, exact, other, Source(predict).all)
    truth.backward()
    trainer = trainer_of(run, model, start)
    losses = trainer._losses(trainer.source.all)
    ((losses["loss"] - losses["vb"]).sum() / 6).backward()
    for (name, weight), (_, expected) in zip(model.named_parameters(), exact.named_parameters(), strict=True):
        if expected.grad is not None:
            assert ((weight.grad.double() - expected.grad).abs() <= 2e-4 * expected.grad.abs().max()).all(), name
    assert exact.y_embedder.embedding_table.weight.grad[NULL].any()  # of the images with dropped labels
    assert start is None or all(weight.grad is None for weight in start.parameters())
    plain = trainer_of(run.updated(guidance_training=None), copy.deepcopy(model)).step(1)
    for micro_batch_size in (None, 1):
        values = trainer_of(run.updated(micro_batch_size=micro_batch_size), copy.deepcopy(model), start).step(1)
        assert values["loss"] - values["vb"] == pytest.approx(truth.item(), rel=2e-6)
        assert values["vb"] == pytest.approx(plain["vb"], rel=1e-6)
    assert abs(plain["loss"] - values["loss"]) > 1e-4 * plain["loss"]


def test_second_pass_runs_only_for_labeled_rows_inside_the_interval():
    model = network()
    x, y, t = torch.randn(3, 4, 8, 8), torch.tensor([0, NULL, 2]), torch.tensor([100, 500, 900])
    calls: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, given: calls.append(given[2]))
    guide = GuidanceTraining(run_of(SELF | {"interval": [0.5, 0.95]}), model, Strategy(model, RankGrid()))
    away, rows = guide.predict_null(x, t, y)
    assert rows.tolist() == [2]
    assert [one.tolist() for one in calls] == [[NULL]]
    assert away.shape == (1, 8, 8, 8)
    away, rows = guide.predict_null(x, t, torch.full_like(y, NULL))
    assert len(calls) == 1
    assert not guide.offset(torch.randn(3, 8, 8, 8), away, rows).any()


@pytest.mark.parametrize("backend", ["reference", None])
def test_bf16_guidance_keeps_all_gradients_and_initial_copy_outputs(backend):
    """Autocast caches bf16 copies of weights, also in a pass without gradients."""
    with hcops.use(backend or hcops.describe_kernels()[0]["backend"]):
        reached = []
        for guide in (None, SELF):
            model = network(learn_sigma=False)
            trainer = trainer_of(run_of(guide, "flow", dtype="bf16"), model)
            trainer._losses(trainer.source.all)["loss"].sum().backward()
            reached.append([name for name, weight in model.named_parameters() if weight.grad is not None])
        assert reached[0] == reached[1]
        run = run_of(START, dtype="bf16")
        whole = network()
        held, images = initial_copy(whole, run), Source("noise").all
        assert held is not None
        with torch.no_grad(), autocast_context(run):
            one, two = (model(images.noise, images.t, images.y) for model in (whole, held))
        assert torch.equal(one, two)
        kept = sum(value.nbytes for value in held.parameters())
        assert kept < 0.6 * sum(value.nbytes for value in whole.parameters())


MEANS, SPREAD, TIME = torch.tensor([-1.0, 1.0]).double(), 0.7, 0.5
CENTRES = torch.linspace(-2.8, 2.8, 9)


class Bumps(nn.Module):
    """Prediction of a scalar velocity by bell curves around `CENTRES`, weighted by label; label 2 means no label."""

    def __init__(self) -> None:
        super().__init__()
        self.config = DiT.from_preset(
            "DiT-S/2", hidden_size=8, depth=1, num_heads=1, in_channels=1, num_classes=2
        ).config
        self.weight = nn.Parameter(torch.zeros(3, len(CENTRES)))

    def heights(self, x: Tensor) -> Tensor:
        return torch.exp(-((x.reshape(-1, 1) - CENTRES) ** 2))  # (N, K)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return (self.heights(x) * self.weight[y]).sum(1).reshape(x.shape)


class Exact(Bumps):
    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return velocity(x.reshape(-1), y).float().reshape(x.shape)


def velocity(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of noise - image on the straight path, for a normal class or for label 2, both mixed."""
    gap = x.double()[:, None] - (1 - TIME) * MEANS  # (N, 2)
    spread = (1 - TIME) ** 2 * SPREAD**2 + TIME**2
    each_class = TIME / spread * gap - (MEANS + (1 - TIME) * SPREAD**2 / spread * gap)
    share = torch.softmax(-(gap**2) / (2 * spread), dim=1)
    return torch.cat([each_class, (share * each_class).sum(1, keepdim=True)], dim=1).gather(1, y[:, None])[:, 0]


@pytest.mark.parametrize("by", ["self", "start"])
def test_learned_guidance_matches_the_closed_form_of_two_normal_classes(by):
    """The start network predicts the mixture. Newton steps, because the loss is quadratic: each halves the error."""
    guidance, model, draws = 2.0, Bumps(), torch.Generator().manual_seed(0)
    run = run_of({"reference": by, "guidance": guidance}, "flow")
    guide = GuidanceTraining(run, model, Strategy(model, RankGrid()), start=Exact() if by == "start" else None)
    objective, count = Objective.of(run.objective), 40_000
    label = torch.randint(2, (count,), generator=draws)
    x0 = (MEANS[label] + SPREAD * torch.randn(count, generator=draws)).float().reshape(-1, 1, 1, 1)
    t, noise = torch.full((count,), 1000 * TIME), torch.randn(x0.shape, generator=draws)
    y = torch.where(torch.rand(count, generator=draws) < 0.3, 2, label)
    x_t = objective.noisy(x0, t, noise)
    heights = [model.heights(x_t[y == one]).double() for one in range(3)]
    inverses = torch.stack([torch.linalg.pinv(one.T @ one, rtol=1e-8, hermitian=True) for one in heights])
    for _ in range(25):
        away = guide.predict_null(x_t, t, y)
        output = model(x_t, t, y)
        known = {"x0": x0, "x_t": x_t, "t": t, "noise": noise, "offset": guide.offset(output, *away)}
        (gradient,) = torch.autograd.grad(
            training_loss(output, objective=objective, **known)["loss"].sum(), model.weight
        )
        with torch.no_grad():
            model.weight -= torch.einsum("lij,lj->li", inverses, gradient.double() / 2).float()
    label, none = torch.arange(2).repeat_interleave(81), torch.full((162,), 2)
    # the range of nearly all noisy images
    x = (1 - TIME) * MEANS[label].float() + torch.linspace(-1.0, 1.0, 81).repeat(2)
    with torch.no_grad():
        found, unlabeled_found = (model(x.reshape(-1, 1, 1, 1), t, one).reshape(-1).double() for one in (label, none))
    labelled, unlabeled = velocity(x, label), velocity(x, none)
    guided = unlabeled + guidance * (labelled - unlabeled)
    error = (found - guided).square().mean().sqrt()
    assert error < 0.15 * (found - labelled).square().mean().sqrt()
    assert error < 0.3 * (found - (unlabeled + (2 - 1 / guidance) * (labelled - unlabeled))).square().mean().sqrt()
    assert (unlabeled_found - unlabeled).square().mean().sqrt() < 0.15 * (
        unlabeled_found - labelled
    ).square().mean().sqrt()


@pytest.fixture
def guided(job):
    """Return a factory of guided jobs that start from six steps of another run."""
    base = job("base", lr=5e-3)

    def make(store: str, guide: dict[str, Any], **changes: Any) -> TrainingJob:
        if not base.paths.out.exists():
            assert train(base, Group()) == DONE
        own = {
            name: changes.pop(name) for name in (*JOB_FIELDS, *PATHS, *MachineConfig.model_fields) if name in changes
        }
        run = small_run(guidance_training=guide, init_from_run="base", **changes)
        return job(store, run=run, init=base.paths.out, spec={"guidance_training": guide}, **own)

    return make


@BOTH
@pytest.mark.slow
def test_resumed_guidance_training_is_bit_identical_to_uninterrupted(guided, guide):
    parts, settings = (("a", 6), ("b", 3), ("b", 6)), {"dtype": "bf16", "micro_batch_size": 3}
    whole, first, second = (guided(store, guide, until=until, **settings) for store, until in parts)
    assert [train(part, Group()) for part in (whole, first, second)] == [DONE] * 3
    assert hashes(whole) == hashes(second)
    assert [row["loss"] for row in rows(whole)] == [row["loss"] for row in rows(second)]


@BOTH
@pytest.mark.slow
def test_recomputation_is_bit_exact_and_micro_batches_differ_by_rounding(guided, guide):
    plain = guided("a", guide)
    again, parts = guided("b", guide, activation_checkpointing="block"), guided("c", guide, micro_batch_size=3)
    assert [train(one, Group()) for one in (plain, again, parts)] == [DONE] * 3
    assert hashes(plain) == hashes(again)
    for name in ("loss", "grad_norm"):
        assert [row[name] for row in rows(parts)] == pytest.approx([row[name] for row in rows(plain)], rel=2e-4)


@BOTH
@pytest.mark.slow
def test_guidance_adds_no_checkpoint_content_and_keeps_validation_loss(guided, make_latents, tmp_path, guide):
    """One step at learning rate 0: two runs with the same weights."""
    latents = make_latents(tmp_path / "held-out", held_out=2)
    settings = {"latents": latents, "until": 1, "lr": 1e-30, "validate_every": 1, "dtype": "bf16"}
    one, other = guided("a", guide, **settings), guided("b", guide | {"guidance": 10.0}, **settings)
    assert [train(part, Group()) for part in (one, other)] == [DONE] * 2
    first_weights, second_weights = (
        read_tensors(checkpoint(part).folder / "model.safetensors") for part in (one, other)
    )
    assert sorted(first_weights) == sorted(network().state_dict())
    assert all(torch.equal(first_weights[name], second_weights[name]) for name in first_weights)
    assert [entry["path"] for entry in checkpoint(one).files] == [entry["path"] for entry in checkpoint(other).files]
    assert rows(one)[0]["val_loss"] == rows(other)[0]["val_loss"]
    assert rows(one)[0]["loss"] != pytest.approx(rows(other)[0]["loss"], rel=1e-5)


def test_guidance_flops_share_and_memory_are_counted():
    model, run = network(), run_of(SELF, label_dropout=0.25)
    labelled = Batch(
        torch.randn(4, 4, 8, 8), torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 3, 4]), torch.randn(4, 4, 8, 8)
    )
    with hcops.use("reference"):
        counts = []
        for forward in (lambda: model(labelled.x, labelled.t, labelled.y), None):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                forward() if forward else GuidanceTraining(run, model, Strategy(model, RankGrid())).predict_null(
                    labelled.x, labelled.t, labelled.y
                )
            counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]
    assert run.guided_share == 0.75
    assert run_of(SELF | {"interval": [0.2, 0.7]}, label_dropout=0.5).guided_share == pytest.approx(0.25)
    assert small_run().guided_share == 0.0
    normal = {"prediction_type": "flow", "timestep_sampling": "logit-normal", "logit_mean": 0.4, "logit_std": 0.7}
    some = small_run(
        guidance_training=SELF | {"interval": [0.0, 0.75]}, objective=normal, model=SMALL | {"learn_sigma": False}
    )
    times = Objective.of(some.objective).times((np.arange(10**5) + 0.5) / 10**5)
    assert some.guided_share == pytest.approx(0.9 * (times <= 750).mean(), abs=1e-4)
    size = run.model.parameters
    for dtype, num_bytes in (("fp32", 4), ("bf16", 2)):
        plain, other = (run_of(guide, dtype=dtype).state_bytes for guide in (None, START))
        assert other - plain == num_bytes * size
        assert run_of(SELF, dtype=dtype).state_bytes == plain


class TestOnSeveralRanks:
    pytestmark = several_ranks

    @pytest.mark.sampled("several ranks")
    def test_two_rank_guidance_training_matches_a_single_rank(self, guided, tmp_path):
        cases = {
            "dp": {"strategy": "dp"},
            "ddp": {"gradient_sync": "ddp", "micro_batch_size": 3},
            "zero": {"sharding": "zero1", "micro_batch_size": 3},
            "tp": {"strategy": "dp+tp", "dtype": "bf16"},
            "tp-fp32": {"strategy": "dp+tp"},
        }
        jobs = []
        for kind, guide in (("self", SELF), ("start", START)):
            make = partial(ten_steps, partial(guided, guide=guide))
            for case, settings in cases.items():
                one = make(f"{kind}-{case}-one", **{key: settings[key] for key in settings if key == "dtype"})
                train(one, Group())
                jobs.append((one, make(f"{kind}-{case}", **settings)))
        done = train_on_ranks(tmp_path, [several for _, several in jobs])
        assert done.returncode == 0, done.stderr
        for one, several in jobs:
            assert_close(rows(several), rows(one), tolerance=FP32 if one.run.dtype == "fp32" else BF16)


def test_start_reference_without_null_label_is_rejected_before_training(job, tmp_path, monkeypatch):
    """From a file; for a run in the same configuration, the configuration is rejected."""
    sizes = {key: SMALL[key] for key in ("hidden_size", "depth", "num_heads")}
    found = DiT.from_preset("DiT-S/2", **sizes, input_size=8, num_classes=NULL, class_dropout_prob=0.0)
    (tmp_path / "weights.pt").touch()
    monkeypatch.setattr(initial_weights, "read_weights", lambda *_, **__: (found.state_dict(), found.config))
    run = small_run(guidance_training=START, init_from_file=str(tmp_path / "weights.pt"))
    with pytest.raises(
        UserError,
        match=r"guidance_training\.reference: start[\s\S]*a network without a null label[\s\S]*dropped labels",
    ):
        train(job(run=run), Group())
