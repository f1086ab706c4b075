"""Certified training: what is trained on is at least the loss of every point in the ball."""

from __future__ import annotations

from dataclasses import replace
from math import log, pi

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.gradient import GradientAttack
from holdfast.bounds import lower_bound
from holdfast.bounds.network.tracing import Program, trace
from holdfast.bounds.relaxations import Box
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.noise import Noise
from holdfast.training.adversaries import certified
from holdfast.training.adversaries.base import Adversary, in_training
from holdfast.training.adversaries.certified import Certified, CertifiedLearner, balance, charges, keep_boxes_small
from holdfast.training.health import eval_codes
from holdfast.training.learner import Batch, Setting, TrainingObjective
from holdfast.training.objectives.contrastive import SimCLR
from holdfast.training.objectives.teachers import Distillation, DistillationLearner

DOMAIN = Domain((1, 6, 6))
COUNT, WIDTH = 6, 5
RADIUS = 0.05


def network() -> nn.Module:
    """Two layers with batch norm, whose running statistics are not those of a new one."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    norm.running_mean, norm.running_var = torch.randn(4) / 4, torch.rand(4) + 0.5
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, WIDTH))


def learner_of(objective: TrainingObjective, settings: Certified, encoder: nn.Module | None = None) -> CertifiedLearner:
    inner = objective.learner(encoder or network(), Setting(DOMAIN, WIDTH, COUNT, 0, COUNT))
    around = settings.around(inner, DOMAIN, from_scratch=False)
    assert isinstance(around, CertifiedLearner)
    return around.double().train()


def batch_of(objective: TrainingObjective, progress: float = 1.0) -> Batch:
    noise = Noise.of(0, [str(row) for row in range(COUNT)])
    views = tuple(noise.fork("view", view).uniform(DOMAIN.shape, torch.float64) for view in range(objective.views))
    return Batch(torch.arange(COUNT), views[0], views, None, noise.fork("epoch"), progress=progress)


def loss_at(learner: CertifiedLearner, batch: Batch, pixels: Tensor) -> Tensor:
    """The loss that is bounded, of points of the ball, one image after another: slow and as it is defined."""
    encoder = learner.encoder.eval()
    with torch.no_grad():
        clean, codes = encoder(batch.views[0]), encoder(pixels)
        keys = encoder(batch.views[-1])
        if isinstance(learner.learner, DistillationLearner):
            keys = learner.learner.target(batch)
            if learner.learner.settings.temperature is None:
                return (codes - keys).square().mean(1)
        keys = nn.functional.normalize(keys, dim=1)
    losses = []
    for i in range(COUNT):
        terms = [
            torch.exp(-(keys[i] - keys[j]) @ codes[i] / (learner.settings.temperature * clean[i].norm()))
            for j in range(COUNT)
            if j != i
        ]
        losses.append(torch.log(1 + torch.stack(terms).sum()))
    return torch.stack(losses)


@pytest.mark.parametrize("bound", ["interval", "crown-ibp"])
@pytest.mark.parametrize("objective", [SimCLR(), Distillation(), Distillation(temperature=0.2)], ids=str)
def test_no_point_of_the_ball_has_a_larger_loss_than_the_worst(objective: TrainingObjective, bound: str) -> None:
    # Half way up the ramp, where crown-ibp is a mean of both bounds.
    settings = Certified(Linf(2 * RADIUS), bound=bound, ramp=1.0)
    learner, batch = learner_of(objective, settings), batch_of(objective, progress=0.5)
    worst = learner.worst_loss(batch)[0]
    assert settings.ball_at(0.5) == Linf(RADIUS)
    encoder = in_training(learner.encoder.eval(), DOMAIN)
    attacked = GradientAttack(steps=20)(
        encoder,
        batch.views[0],
        lambda codes: -(codes * encoder.forward(batch.views[0]).detach()).sum(1),
        Linf(RADIUS),
        batch.noise,
    )
    random = [
        DOMAIN.clip(batch.views[0] + (2 * torch.rand(COUNT, *DOMAIN.shape) - 1).double() * RADIUS) for _ in range(50)
    ]
    corners = [
        DOMAIN.clip(batch.views[0] + torch.randn(COUNT, *DOMAIN.shape).double().sign() * RADIUS) for _ in range(50)
    ]
    losses = [loss_at(learner, batch, pixels) for pixels in (batch.views[0], attacked, *random, *corners)]
    assert float(torch.stack(losses).amax(0).mean()) <= float(worst.detach())
    assert float(worst.detach()) < 20 * float(losses[1].mean()) + 1, "vacuous fixture"


def test_the_worst_of_a_linear_encoder_is_known() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(36, WIDTH)
    encoder = nn.Sequential(nn.Flatten(), linear)
    domain = Domain((1, 6, 6), -10.0, 10.0)  # so wide that the range cuts nothing off
    settings = Certified(Linf(RADIUS))
    learner = settings.around(
        SimCLR().learner(encoder, Setting(domain, WIDTH, COUNT, 0, COUNT)), domain, False
    ).double()
    assert isinstance(learner, CertifiedLearner)
    batch = batch_of(SimCLR())
    codes = encoder(batch.views[0])
    keys = nn.functional.normalize(encoder(batch.views[1]), dim=1)
    losses = []
    for i in range(COUNT):
        margins = torch.stack([keys[i] - keys[j] for j in range(COUNT) if j != i])
        least = margins @ codes[i] - RADIUS * (margins @ linear.weight).abs().sum(1)
        losses.append(torch.log(1 + torch.exp(-least / (settings.temperature * codes[i].norm())).sum()))
    assert torch.allclose(learner.worst_loss(batch)[0], torch.stack(losses).mean())


def test_a_taught_network_begins_with_small_boxes_and_its_teacher_stays() -> None:
    teacher = network()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    torch.manual_seed(0)
    learner = learner_of(Distillation(temperature=0.2, fresh=True), Certified(Linf(RADIUS)), teacher)
    assert isinstance(learner.learner, DistillationLearner)
    for name, value in learner.learner.original.state_dict().items():
        assert torch.equal(value, before[name].to(value)), name
    (last,) = (part for part in learner.encoder.modules() if isinstance(part, nn.Linear))
    assert float(last.weight.detach().std()) == pytest.approx((2 * pi) ** 0.5 / 64, rel=0.2)


def test_few_negatives_stand_for_all() -> None:
    batch = batch_of(SimCLR())
    values = [
        float(learner_of(SimCLR(), Certified(Linf(RADIUS), negatives=n)).worst_loss(batch)[0]) for n in (2, 3, 5, 24)
    ]
    assert values[2] == values[3]
    assert all(0.5 < value / values[3] < 2 for value in values)


@pytest.mark.parametrize("negatives", [1, 2, 3, 5, 24])
def test_images_that_were_not_drawn_count_as_those_that_were(negatives: int) -> None:
    """By hand: where all codes are one, all margins are 0 and the loss is ``log(1 + 5)``, however few are drawn."""
    linear = nn.Linear(36, WIDTH)
    nn.init.zeros_(linear.weight)
    nn.init.ones_(linear.bias)
    learner = learner_of(SimCLR(), Certified(Linf(RADIUS), negatives=negatives), nn.Sequential(nn.Flatten(), linear))
    assert float(learner.worst_loss(batch_of(SimCLR()))[0].detach()) == pytest.approx(log(COUNT))


@pytest.mark.parametrize("bound", ["interval", "crown-ibp"])
def test_gradients_are_those_of_the_bound(bound: str) -> None:
    """Finite differences in every weight, the batch norm's included."""
    learner = learner_of(SimCLR(), Certified(Linf(RADIUS), bound=bound, ramp=1.0, regularised=0.0))
    batch = batch_of(SimCLR(), progress=0.5)
    learner.worst_loss(batch)[0].backward()
    for weight in learner.encoder.parameters():
        assert weight.grad is not None
        place = int(weight.grad.abs().argmax())
        flat = weight.data.view(-1)
        before, values = float(flat[place]), []
        for step in (-1e-6, 1e-6):
            flat[place] = before + step
            # Keys and norms are held still, and so must be what they are computed from.
            values.append(float(_held_still(learner, batch, flat, place, before)))
        flat[place] = before
        assert weight.grad.view(-1)[place] == pytest.approx((values[1] - values[0]) / 2e-6, rel=1e-4)


def _held_still(learner: CertifiedLearner, batch: Batch, flat: Tensor, place: int, before: float) -> Tensor:
    """The worst loss with this weight, its keys and norms with the weight as it was before."""
    moved, codes_of = float(flat[place]), eval_codes

    def codes_before(of: nn.Module, pixels: Tensor) -> Tensor:
        flat[place] = before
        codes = codes_of(of, pixels)
        flat[place] = moved
        return codes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certified, "eval_codes", codes_before)
        return learner.worst_loss(batch)[0].detach()


def test_a_program_follows_the_weights_and_statistics_of_its_module() -> None:
    module, pixels = network().eval(), batch_of(SimCLR()).views[0].float()
    program = Program(in_training(module, DOMAIN), pixels[:1])
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.load_state_dict({name: 1.5 * value for name, value in part.state_dict().items()})
    graph = program.graph(module, torch.float32)
    assert torch.allclose(graph(pixels), module(pixels), atol=1e-5)
    fresh = trace(Encoder(module, "fresh", DOMAIN), torch.float32)
    assert [node.name for node in graph.nodes] == [node.name for node in fresh.nodes]


def test_what_the_bound_says_is_what_certification_says() -> None:
    """The margins in the loss are those of ``lower_bound``, of the encoder in eval mode."""
    learner, batch = learner_of(Distillation(), Certified(Linf(RADIUS), regularised=0.0)), batch_of(Distillation())
    encoder = Encoder(learner.encoder.eval(), "same", DOMAIN)
    assert isinstance(learner.learner, DistillationLearner)
    target = learner.learner.target(batch)
    units = torch.cat([torch.eye(WIDTH), -torch.eye(WIDTH)]).double().expand(COUNT, -1, -1)
    lower, upper = lower_bound(encoder, batch.views[0], units, Linf(RADIUS), "interval").chunk(2, 1)
    expected = torch.maximum((target - lower).square(), (-upper - target).square()).mean()
    assert torch.allclose(learner.worst_loss(batch)[0], expected)


def test_a_small_box_lies_inside_the_ball_around_the_attacked_point() -> None:
    whole = learner_of(SimCLR(), Certified(Linf(RADIUS), steps=4))
    small = learner_of(SimCLR(), Certified(Linf(RADIUS), steps=4, box=0.3))
    batch = batch_of(SimCLR())
    moved = small.settings(small, batch, DOMAIN, {})
    assert moved is not None
    assert ((moved - batch.views[0]).abs() <= RADIUS + 1e-9).all()
    batch.attacked = moved
    assert float(small.worst_loss(batch)[0]) < float(whole.worst_loss(batch)[0])


def test_the_radius_grows_along_the_ramp() -> None:
    settings = Certified(Linf(0.1), ramp=0.5)
    assert [round(settings.ball_at(p).radius, 6) for p in (0.0, 0.25, 0.5, 1.0)] == [0.0001, 0.05, 0.1, 0.1]
    assert Certified(Linf(0.1), ramp=0.0).ball_at(0.0) == Linf(0.1)


def test_weights_begin_so_that_boxes_keep_their_width() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(6) for part in (nn.Linear(200, 200), nn.ReLU())]
    grown = []
    for begin in (lambda module: None, keep_boxes_small):
        module = nn.Sequential(nn.Flatten(), nn.Linear(36, 200), nn.ReLU(), *layers, nn.Linear(200, WIDTH))
        for part in module.modules():
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight)
        begin(module)
        codes = Encoder(module, "deep", DOMAIN)
        units = torch.eye(WIDTH)[None].double()
        pixels = torch.full((1, *DOMAIN.shape), 0.5)
        low = lower_bound(codes, pixels, units, Linf(RADIUS), "interval")
        high = -lower_bound(codes, pixels, -units, Linf(RADIUS), "interval")
        grown.append(float((high - low).mean()))
    assert grown[1] < 10 * 2 * RADIUS < grown[0]


def test_boxes_are_charged_for_growth_and_for_leaning() -> None:
    centres = torch.tensor([-2.0, -1.0, 1.0, 2.0])
    balanced = Box(centres - 0.1, centres + 0.1)
    assert float(charges(balanced, torch.tensor(0.2))) == 0
    assert float(charges(balanced, torch.tensor(0.02))) == pytest.approx(0.4)  # 1/2 - 1/10
    assert float(charges(Box(centres + 0.8, centres + 0.9), torch.tensor(0.2))) > 0
    assert float(balance(torch.tensor(1.0), torch.tensor(4.0))) == 0.25
    assert float(balance(torch.tensor(0.0), torch.tensor(4.0))) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("certified:ball=l2:0.5", "linf balls"),
        ("certified:bound=alpha", "crown-ibp, interval"),
        ("certified:share=0", "share and box in"),
        ("certified:box=0.2", "takes steps of an attack"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(HoldfastError, match=sentence):
        Adversary.read(text)


def test_what_cannot_be_bounded_is_refused_by_name() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).sort(dim=1).values[:, :WIDTH] * self.scale

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

    learner = learner_of(Distillation(), Certified(Linf(RADIUS)), Sorted())
    with pytest.raises(HoldfastError, match="'sort'"):
        learner(batch_of(Distillation()))


def test_all_of_the_radius_is_in_force_by_default_outside_a_training() -> None:
    assert replace(Certified(), steps=3).ball_at(batch_of(SimCLR()).progress) == Linf(0.1)
