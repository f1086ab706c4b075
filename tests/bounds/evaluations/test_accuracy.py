"""Instance accuracy: closed forms, published against direct attack, generated negatives, contradictions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from holdfast import data
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds.bound_findings import series
from holdfast.bounds.certified_pairs import (
    COLOR,
    GRAY,
    UNDEFINED,
    generated,
    image_pairs,
    published_attack,
    published_view,
    unit_ball,
)
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.bounds.methods.base import Interval
from holdfast.core.balls import L2, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import Options, load
from holdfast.encoders.rvcl import MEAN, STD
from holdfast.measure.evaluation import settings
from holdfast.measure.population import Population
from holdfast.run.request import build
from holdfast.transforms.augmentations.colour import ColorJitter, Grayscale
from holdfast.transforms.augmentations.cropping import HorizontalFlip, RandomResizedCrop
from holdfast.transforms.base import Chain
from tests.bounds.evaluations.known import Boast, linear_case
from tests.samples import DIGITS, builtin, digits

SMALL = InstanceAccuracy(
    balls=(Linf(0.05), Linf(0.12)), samples=8, negatives=3, attack=AdaptiveAttack(restarts=1, steps=10)
)


def test_the_accuracy_of_a_linear_encoder_is_known() -> None:
    encoder, images, weight = linear_case()
    population = Population(encoder, images, RunSettings())
    pairs = image_pairs(population, population.choose(12), 4, 100)
    slope = unit_ball("linf").dual_norm((pairs.specifications @ weight.double()).flatten(0, 1))
    radii = (pairs.values(pairs.images) / slope).reshape(pairs.shape)
    eps = float(radii.median()) * 1.0001
    measured = replace(SMALL, balls=(Linf(eps),), samples=12, negatives=4)(encoder, images)
    certified, _, direct, proved, attacked = measured.series
    expected = (radii > eps).double().mean(1).tolist()
    assert 0 < sum(expected) < 12, "vacuous"
    assert certified.values == pytest.approx(expected)
    assert direct.values == pytest.approx(expected)
    # Of a linear encoder bound and attack meet: W f(x) less the radius times the dual norm of W's gradient.
    margins = (pairs.values(pairs.images) - eps * slope).reshape(pairs.shape).amin(1).tolist()
    assert proved.values == pytest.approx(margins, abs=1e-5)
    assert attacked.values == pytest.approx(margins, abs=1e-3)
    (curve,) = (each for each in measured.findings.curves if each.quantity == "pair_margins")
    assert len(curve.x) == 48
    assert all(low <= high + 1e-6 for low, high in zip(curve.low, curve.high, strict=True))
    assert list(curve.high) == sorted(curve.high)
    assert sum(low > 0 for low in curve.low) == sum((radii > eps).flatten().tolist())


def test_certified_is_below_attacked_and_the_direct_attack_is_the_stronger() -> None:
    result = SMALL(builtin(), digits())
    for k in (0, 1):
        certified, published, direct = result.series[3 * k : 3 * k + 3]
        assert [certified.claim, published.claim, direct.claim] == [Claim.LOWER, Claim.UPPER, Claim.UPPER]
        assert all(low <= high for low, high in zip(certified.values, direct.values, strict=True))
        assert all(low <= high for low, high in zip(certified.values, published.values, strict=True))
        assert sum(direct.values) <= sum(published.values)
    assert result.estimate("certified_instance_accuracy", ball="linf:0.12").value < 0.6
    assert result.estimate("certified_instance_accuracy", ball="linf:0.05").value > 0.8
    curves = [curve for curve in result.findings.curves if curve.quantity != "pair_margins"]
    assert len(curves) == 3
    assert all(curve.x == (0.05, 0.12) for curve in curves)


def test_wider_balls_and_looser_bounds_certify_less() -> None:
    wide = replace(SMALL, balls=(Linf(0.08), L2(0.3)), method=Interval())(builtin(), digits())
    tight = replace(SMALL, balls=(Linf(0.08), L2(0.3)))(builtin(), digits())
    for ball in ("linf:0.08", "l2:0.3"):
        loose, better = (r.estimate("certified_instance_accuracy", ball=ball).value for r in (wide, tight))
        assert loose < better
    assert {curve.quantity for curve in tight.findings.curves} == {"pair_margins"}  # of two norms there is no line


def test_generated_negatives_are_near_their_anchors_and_far_from_a_view() -> None:
    population = Population(builtin(), digits(), RunSettings())
    rows = population.choose(6)
    made, clean = generated(population, rows, Linf(0.3), GRAY), population.pixels(rows)
    assert Linf(0.3).norm(made - clean).max() <= 0.3 + 1e-6
    noise = (clean + 0.3 * torch.randn_like(clean).sign()).clamp(0, 1)
    view = published_view(DIGITS)(clean, population.context(rows).noise.fork("negative").fork("view"))
    away, by_noise = ((population.encode(x) - population.encode(view)).norm(dim=1) for x in (made, noise))
    assert (away > by_noise).all()
    result = replace(SMALL, generate=Linf(0.3), negatives=1)(builtin(), digits())
    others = replace(SMALL, negatives=1)(builtin(), digits())
    assert result.series[3].values != others.series[3].values
    assert build(InstanceAccuracy, {"generate": "linf:0.3"}) == InstanceAccuracy(generate=Linf(0.3))
    assert build(InstanceAccuracy, {"generate": "none"}) == InstanceAccuracy()


def color_case() -> tuple[Encoder, Images]:
    """A small network on colour images, with the normalisation of the paper's encoders, in float64."""
    generator = torch.Generator().manual_seed(3)
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).double().eval()
    for parameter in layers.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    encoder = Encoder(layers, "color", Domain((3, 8, 8)), mean=MEAN, std=STD).to("cpu", torch.float64)
    pixels = torch.rand(6, 3, 8, 8, generator=generator)
    return encoder, Images(pixels, ids=[f"image {k}" for k in range(6)])


def step_by_step(encoder: Encoder, x: Tensor, view: Tensor, eps: float, alpha: float, std: float) -> Tensor:
    """The authors' loop, on inputs normalised by ``std``, where ``eps`` and ``alpha`` are; each image by itself."""
    made = []
    for one, other in zip(x.split(1), view.split(1), strict=True):
        target, z = encoder(other).detach(), one / std
        for _ in range(200):
            z = z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(nn.functional.mse_loss(encoder(z * std), target), z)
            z = (z + alpha * gradient.sign()).clamp(0, 1 / std)
            z = torch.max(torch.min(z, one / std + eps), one / std - eps)
        made.append(z * std)
    return torch.cat(made).detach()


@pytest.mark.parametrize("channels", [1, 3])
def test_negatives_are_those_of_the_authors_program(channels: int) -> None:
    """Away from a SimCLR view, by 200 steps: of 0.005 for MNIST, of 0.001 in normalised units for CIFAR-10."""
    encoder, images = (builtin().to("cpu", torch.float64), digits(6)) if channels == 1 else color_case()
    population = Population(encoder, images, RunSettings(precision="float64"))
    rows = list(range(6))
    x, noise = population.pixels(rows), population.context(rows).noise.fork("negative").fork("view")
    eps, alpha, std = (0.3, 0.005, 1.0) if channels == 1 else (16 / 255, 0.001, 0.225)
    colors = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), Grayscale(0.2)
    cropped = (RandomResizedCrop(0.4),) if channels == 1 else (HorizontalFlip(), RandomResizedCrop(0.08))
    named = noise.fork("transform", published_view(encoder.domain).name)
    view = Chain((*colors, *cropped)).change(x, named)
    assert not torch.equal(view, x)
    attack = published_attack(encoder.domain)
    assert (attack.steps, attack.start, attack.keep) == (200, 1.0, "last")
    made = generated(population, rows, Linf(eps * std), replace(attack, start=0.0))
    expected = step_by_step(encoder, x, view, eps, alpha, std)
    assert (made - expected).abs().max() <= 1e-6


def test_negatives_depend_on_the_seed_and_on_the_image_alone() -> None:
    encoder, images = color_case()
    population = Population(encoder, images, RunSettings(seed=1))
    whole = generated(population, range(6), Linf(0.01), COLOR)
    assert torch.equal(generated(population, [4, 2], Linf(0.01), COLOR), whole[[4, 2]])
    other = generated(Population(encoder, images, RunSettings(seed=2)), range(6), Linf(0.01), COLOR)
    assert not torch.equal(other, whole)


def test_both_attacks_are_reported_under_their_own_names() -> None:
    encoder, images = color_case()
    for result, published in ((SMALL(builtin(), digits()), GRAY), (replace(SMALL, samples=4)(encoder, images), COLOR)):
        attacks = [one.conditions["attack"] for one in result.series if one.quantity == "robust_pairs"]
        assert attacks == [f"{published} at the negative", f"{SMALL.attack} at the difference"] * 2
        assert len({one.aim for one in result.estimates if one.quantity == "robust_instance_accuracy"}) == 2


@pytest.mark.parametrize("domain", [Domain((6,)), Domain((2, 8, 8)), Domain((1, 8, 8), -1.0, 1.0)])
def test_inputs_without_a_published_view_are_refused(domain: Domain) -> None:
    with pytest.raises(HoldfastError, match=r"^generate: "):
        published_view(domain)


TABLE_E2 = [
    ("mnist_base", "mnist_base", "mnist_test", "0.3", "0.1", 0.20, 0.0, 30),
    ("cifar10_cnn_4layer_b_adv8", "cifar_cnn_b", "cifar10_raw200", "16/255", "4/255", 1.0, 0.52, 16),
]
"""Weights, architecture, images, eps of negatives and of the test as in the paper, accuracy under PGD, by CROWN, images."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture", "pixels", "negative", "tested", "pgd", "crown", "n"), TABLE_E2)
def test_accuracies_are_those_of_the_papers_table(
    reference: Path,
    name: str,
    architecture: str,
    pixels: str,
    negative: str,
    tested: str,
    pgd: float,
    crown: float,
    n: int,
) -> None:
    """Within three standard errors of a difference between the paper's 100 images and n others here."""
    encoder = load(f"checkpoint:{reference}/encoders/{name}.pt", Options(arch=f"holdfast.encoders.rvcl:{architecture}"))
    images = data.load(f"arrays:{reference}/images/{pixels}.npz", encoder.domain, limit=n)
    std = 1.0 if encoder.domain.shape[0] == 1 else 0.225
    eps_negative, eps = (float(Fraction(text)) * std for text in (negative, tested))
    weak = AdaptiveAttack(restarts=1, steps=1)
    evaluation = InstanceAccuracy((Linf(eps),), n, negatives=1, generate=Linf(eps_negative), attack=weak)
    certified, published, *_ = evaluation(encoder, images, RunSettings(batch_size=10)).estimates
    for found, theirs in ((certified.value, crown), (published.value, pgd)):
        together = (n * found + 100 * theirs + 1) / (
            n + 102
        )  # one success and one failure more, so that it is never 0 or 1
        assert abs(found - theirs) <= 3 * (together * (1 - together) * (1 / n + 1 / 100)) ** 0.5, (found, theirs)


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, balls=(Linf(0.05), Linf(0.5)), method=Boast())(builtin(), digits())
    (verdict,) = result.findings.verdicts
    assert verdict.status == "refuted"
    assert result.estimate("contradictions", ball="linf:0.05").value < 24
    assert result.estimate("contradictions", ball="linf:0.5").value == 24
    assert result.findings.warnings
    assert float(verdict.witness["value_in_float64"]) <= 0
    assert float(verdict.witness["distance"]) <= float(verdict.witness["certified_radius"]) * (1 + 1e-6)


@pytest.mark.parametrize("text", ["crown", "interval", "alpha:steps=5", "exact:seconds=0.5", "branch:parts=9"])
def test_methods_survive_their_spelling(text: str) -> None:
    assert settings(build(InstanceAccuracy, {"method": text}))["method"] == text


def test_each_attack_is_the_best_at_its_own_aim() -> None:
    population = Population(builtin(), digits(), RunSettings())
    observation = replace(SMALL, published=AdaptiveAttack(), attack=AdaptiveAttack()).pair_bounds(Linf(0.1))
    pair_attack = observation.pair_attack(population, population.choose(8))
    close, worst = observation.close(pair_attack), observation.worst(pair_attack)
    targets = population.encode(pair_attack.pairs.negatives.flatten(0, 1).float()).double()
    to_close, to_worst = (
        (pair_attack.pairs.encoder(found.points) - targets).norm(dim=1).mean() for found in (close, worst)
    )
    assert to_close < to_worst
    assert worst.values.mean() < close.values.mean()


def test_undefined_pairs_are_left_out_of_an_images_mean() -> None:
    values = torch.tensor([[1.0, torch.nan, 2.0], [torch.nan] * 3])
    means = series("q", {}, values, "1", Claim.LOWER, "q", UNDEFINED)
    assert means.values[0] == 1.5
    assert means.reasons == {1: UNDEFINED}


def test_keys_list_shared_settings_like_an_observations_own() -> None:
    listed = settings(SMALL.pair_bounds(Linf(0.1)))
    fields = {"ball", "samples", "negatives", "generate", "method", "published", "attack", "neurons", "arithmetic"}
    assert set(listed) == fields
    assert listed["samples"] == SMALL.samples
    assert listed["attack"] == str(SMALL.attack)


def test_nothing_is_certified_by_a_bound_that_is_not_positive() -> None:
    """The certified accuracy counts positive bounds alone, and only those can be contradicted."""
    evaluation = replace(SMALL, balls=(Linf(0.05),), negatives=1)
    population = Population(builtin(), digits(8), RunSettings())
    bounds = torch.tensor([-1.0, -1e-3, -5e-4, -1e-9, 0.0, 1e-12, 1.0, -torch.inf]).double()[:, None]
    observed = {"0.bound": bounds, "0.published": torch.ones_like(bounds), "0.direct": -torch.ones_like(bounds)}
    observed["0.direct"][6] = 1.0
    findings = evaluation.conclude(population, range(8), observed)
    certified, _, attacked, margin, _ = findings.series
    assert margin.reasons.keys() == {7}, "an infinite bound is none"
    assert certified.values == (0, 0, 0, 0, 0, 1, 1, 0)
    assert attacked.values == (0, 0, 0, 0, 0, 0, 1, 0)
    (contradictions,) = [e.value for e in findings.estimates if e.quantity == "contradictions"]
    assert contradictions == 1
