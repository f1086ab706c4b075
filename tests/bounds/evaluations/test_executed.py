"""Certificates of encoders as executed: attacks in the same precision never enter, and those of real numbers are entered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds import Crown, Exact, Method, certified_radius
from holdfast.bounds.certified_pairs import PairAttack, Pairs, image_pairs
from holdfast.bounds.evaluations.certified_breakaway import CertifiedBreakaway
from holdfast.bounds.evaluations.certified_displacement import CertifiedDisplacement, DisplacementBounds
from holdfast.bounds.evaluations.certified_overlap import CertifiedOverlap
from holdfast.bounds.evaluations.certified_radius import CertifiedRadius
from holdfast.bounds.evaluations.instance_accuracy import InstanceAccuracy
from holdfast.bounds.evaluations.linear_radius import LinearRadius, classifier, margins
from holdfast.bounds.evaluations.margin_distribution import MarginDistribution
from holdfast.bounds.outputs import OutputBounds
from holdfast.bounds.pair_bounds import Certification, certified_radii, cross_check, nearest_confusion
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.commands.certify import certify
from holdfast.core.balls import Linf
from holdfast.core.divergences import Divergence, L2Distance, LinfDistance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.population import Population
from tests.marks import rest_slow
from tests.samples import builtin, classes, digits, published

WEAK = AdaptiveAttack(restarts=1, steps=10)
TYPES = ["bfloat16", "float16", "float32"]


def pairs_of(encoder: Encoder, images: Images, precision: str, count: int = 6) -> Pairs:
    population = Population(encoder, images, RunSettings(precision=precision))
    return image_pairs(population, range(count), 3, 50_000, arithmetic="executed")


def in_real_numbers(pairs: Pairs) -> Pairs:
    return replace(pairs, graph=rigorous(replace(pairs.graph, steps=())))


def entered(pairs: Pairs, radii: Tensor) -> Tensor:
    """Which certified balls an attack enters, whose points are judged as they are executed."""
    attack = PairAttack(pairs, Linf(1.0), AdaptiveAttack(restarts=1, steps=30))
    inside = cross_check(attack, radii).values.reshape(pairs.shape) <= 0
    nearest = attack.sizes(nearest_confusion(attack, radii).points).reshape(pairs.shape) <= radii * (1 - 1e-9)
    return (inside | nearest) & (radii > 0)


def flat(bias: float, seed: int) -> tuple[Encoder, Images]:
    """An encoder of one hidden layer, tight for CROWN, whose biases cancel in its code."""
    torch.manual_seed(seed)
    first, last = nn.Linear(16, 32), nn.Linear(32, 4)
    with torch.no_grad():
        first.bias.fill_(bias)
        last.weight[:, 16:] = -last.weight[:, :16]
        last.bias.zero_()
    module = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
    return Encoder(module, "flat", Domain((1, 4, 4))), Images(torch.rand(8, 1, 4, 4))


@pytest.mark.slow
@pytest.mark.parametrize("precision", rest_slow(["bfloat16", "float16"]))
def test_half_precision_crosses_what_is_proved_of_real_numbers_and_nothing_that_is_proved_of_it(precision: str) -> None:
    crossed = proved = 0
    for seed in range(3):
        pairs = pairs_of(*flat(1.0, seed), precision)
        real, executed = (certified_radii(each, Linf(1.0), Crown(), 1e-4) for each in (in_real_numbers(pairs), pairs))
        assert (executed <= real + 1e-4).all()
        assert not entered(pairs, executed).any()
        crossed, proved = crossed + int(entered(pairs, real).sum()), proved + int((executed > 0).sum())
    assert crossed, "vacuous: rounding crosses nothing"
    assert proved, "vacuous: nothing is certified"


@pytest.mark.slow
@pytest.mark.parametrize("bias", rest_slow([3e2, 1e2]))
def test_large_biases_in_single_precision(bias: float) -> None:
    crossed = proved = 0
    for seed in range(4):
        pairs = pairs_of(*flat(bias, seed), "float32")
        real, executed = (certified_radii(each, Linf(1.0), Crown(), 1e-5) for each in (in_real_numbers(pairs), pairs))
        assert not entered(pairs, executed).any()
        crossed, proved = crossed + int(entered(pairs, real).sum()), proved + int((executed > 0).sum())
    assert crossed or bias == 1e2, "vacuous: rounding crosses nothing"
    assert proved or bias > 1e2, "vacuous: nothing is certified"


@pytest.mark.parametrize("bias", [1e4, 1e6, 1e12])
def test_biases_that_cost_most_digits_are_refused(bias: float) -> None:
    with pytest.raises(HoldfastError, match=r"cannot be bounded|lose digits"):
        pairs_of(*flat(bias, 0), "float32")


@pytest.mark.parametrize("method", [Crown(), Exact(seconds=5.0)], ids=str)
@pytest.mark.parametrize("precision", rest_slow(TYPES))
def test_long_sums_and_denormal_weights(method: Method, precision: str) -> None:
    """A sum of many small terms beside a large one, which loses them, and weights that are hardly numbers of the type."""
    torch.manual_seed(0)
    first, last = nn.Linear(256, 4), nn.Linear(4, 2)
    with torch.no_grad():
        first.weight.uniform_(-1e-3, 1e-3)
        first.weight[:, 0] = 1.0
        first.weight[3] *= 1e-38 if precision != "float16" else 1e-5
    encoder = Encoder(nn.Sequential(first, nn.ReLU(), last), "long", Domain((256,)))
    pairs = pairs_of(encoder, Images(torch.rand(6, 256)), precision, 2)
    radii = certified_radii(pairs, Linf(1.0), method, 1e-4)
    assert not entered(pairs, radii).any()
    assert (radii > 0).any()


def test_a_number_that_may_overflow_is_refused_by_name() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(16, 8), nn.Linear(8, 4)
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.mul_(1000)
    module = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)
    encoder, images = Encoder(module, "loud", Domain((1, 4, 4))), Images(torch.rand(6, 1, 4, 4))
    with pytest.raises(HoldfastError, match=r"'linear' \(linear_1\) may reach .* float16 ends at 6.55e\+04") as caught:
        CertifiedRadius(samples=4, negatives=2, attack=WEAK)(encoder, images, RunSettings(precision="float16"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("precision", rest_slow(TYPES))
def test_evaluations_say_what_is_certified_and_what_rounding_costs(precision: str) -> None:
    run, encoder, images = RunSettings(precision=precision), builtin("digits-robust"), digits(12)
    shared: dict[str, Any] = {"samples": 3, "negatives": 2, "attack": WEAK, "arithmetic": "executed"}
    result = CertifiedRadius(**shared)(encoder, images, run)
    sums = "" if precision == "float32" else ", sums in float32"
    radius, lost = (result.estimate(name) for name in ("average_certified_radius", "radius_lost_to_rounding"))
    assert radius.conditions["arithmetic"] == lost.conditions["arithmetic"] == f"executed in {precision}{sums}"
    assert 0 < lost.value < radius.value
    assert lost.value < 1e-4 or precision != "float32"
    assert result.estimate("contradictions").value == 0
    accuracy = InstanceAccuracy(balls=(Linf(0.1),), **shared)(encoder, images, run)
    assert accuracy.estimate("certified_instance_accuracy").conditions["arithmetic"] == f"executed in {precision}{sums}"
    assert accuracy.estimate("certified_instance_accuracy").value > 0
    assert accuracy.estimate("contradictions").value == 0


def test_real_arithmetic_is_what_it_was() -> None:
    result = CertifiedRadius(samples=3, negatives=2, attack=WEAK)(builtin(), digits(6), RunSettings())
    assert all("arithmetic" not in estimate.conditions for estimate in result.estimates)
    assert all("rounding" not in estimate.quantity for estimate in result.estimates)


@pytest.mark.slow
def test_half_precision_by_the_command(tmp_path: Path) -> None:
    record = certify(
        "builtin:digits-robust",
        "builtin:digits",
        Linf(0.05),
        negatives=3,
        limit=3,
        precision="bfloat16",
        attack=WEAK,
        out=tmp_path,
    )
    assert record.settings["arithmetic"] == "executed in bfloat16, sums in float32"
    assert record.counted("CERTIFIED")
    assert not record.contradictions


def test_an_unknown_arithmetic_is_refused() -> None:
    with pytest.raises(HoldfastError, match=r"arithmetic.*'exact'.*executed, real"):
        CertifiedRadius(arithmetic="exact")(builtin(), digits(4), RunSettings())
    with pytest.raises(HoldfastError, match="arithmetic: unknown name"):
        certified_radius(builtin(), torch.rand(1, 1, 8, 8), torch.ones(1, 1, 32), Linf(0.1), arithmetic="exact")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_base", "mnist_cnn_4layer_a", "cifar10_base_adv4"])
def test_what_rounding_costs_published_encoders(reference: Path, name: str) -> None:
    """On average over pairs; a pair with a large radius may lose more."""
    import numpy as np

    stored = np.load(reference / "verification" / f"autolirpa__{name}.npz")
    pixels = torch.tensor(stored["X_f32"][:8])
    encoder = published(reference, name, torch.float32)
    if "cifar" in name:  # stored in normalised units
        encoder = Encoder(encoder.module, name, Domain((3, 32, 32), -4.0, 4.0))
    pairs = pairs_of(encoder, Images(pixels), "float32", 3)
    real, executed = (certified_radii(each, Linf(1.0), Crown(), 1e-6) for each in (in_real_numbers(pairs), pairs))
    pixel = 0.225 if "cifar" in name else 1.0
    assert 0 < float((real - executed).mean()) * pixel < 1e-4


EVERY: list[tuple[Callable[..., Evaluation], dict[str, Any], str]] = [
    (CertifiedDisplacement, {"balls": (Linf(0.05),)}, "tau"),
    (CertifiedOverlap, {"balls": (Linf(0.02),)}, "certified_overlap_risk"),
    (CertifiedBreakaway, {"balls": (Linf(0.05),), "rivals": 2}, "certified_breakaway_risk"),
    (LinearRadius, {"rivals": 1}, "average_linear_radius"),
    (MarginDistribution, {"tail": 5, "negatives": 2, "rivals": 1}, "order_obeyed"),
]


@pytest.mark.slow
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize(("kind", "settings", "quantity"), EVERY, ids=lambda part: getattr(part, "name", ""))
def test_every_certified_evaluation_certifies_what_is_executed(
    kind: Callable[..., Evaluation], settings: dict[str, Any], quantity: str, precision: str
) -> None:
    images = digits(24)
    images = Images(images.pixels(range(24)), images.ids, classes(24) % 3)
    evaluation = kind(samples=4, attack=WEAK, arithmetic="executed", **settings)
    result = evaluation(builtin("digits-robust"), images, RunSettings(precision=precision))
    sums = "" if precision == "float32" else ", sums in float32"
    for estimate in (e for e in result.estimates if e.quantity.startswith(("certified", quantity))):
        assert estimate.conditions["arithmetic"] == f"executed in {precision}{sums}"
    assert all(e.value == 0 for e in result.estimates if e.quantity == "contradictions")
    assert any(e.quantity == "contradictions" for e in result.estimates)


@pytest.mark.parametrize("divergence", rest_slow([L2Distance(), LinfDistance()]), ids=str)
def test_codes_move_farther_as_executed_than_real_numbers_allow_and_never_farther_than_certified(
    divergence: Divergence,
) -> None:
    """In balls smaller than the last digit of biases that cancel, all that moves is rounding."""
    ball, exceeded = Linf(2e-3), 0
    for seed in range(2):
        population = Population(*flat(4.0, seed), RunSettings(precision="bfloat16"))
        certification = Certification(8, Crown(), AdaptiveAttack(restarts=1, steps=10), 50_000)
        observed = DisplacementBounds(certification, ball, divergence).observe(population, range(8))
        pixels = population.pixels(range(8)).double()
        certified = certification.encoder(population, pixels)
        real = replace(certified, graph=rigorous(replace(certified.graph, steps=())))
        in_real = OutputBounds(real, Crown(), ball).farthest(divergence, pixels)
        moved = observed["attacked"]
        for trial in range(10):
            noise = torch.rand(pixels.shape, generator=torch.Generator().manual_seed(trial)).double()
            points = (pixels + ball.radius * (2 * noise - 1)).clamp(0, 1)
            moved = torch.maximum(moved, divergence(certified.codes(points), certified.codes(pixels)))
        assert (moved <= observed["certified"]).all()
        exceeded += int((moved > in_real).sum())
    assert exceeded, "vacuous: rounding moves no code past what is proved of real numbers"


@pytest.mark.slow
def test_heads_in_float64_on_codes_of_half_precision() -> None:
    crossed = proved = 0
    for seed in range(4):
        encoder, images = flat(2.0, seed)
        population = Population(encoder, images, RunSettings(precision="bfloat16"))
        pixels = population.pixels(range(8)).double()
        certified = Certification(8, Crown(), WEAK, 50_000).encoder(population, pixels)
        weight, bias = torch.randn(3, 4).double(), 0.1 * torch.randn(3).double()
        head = classifier(population.double, weight, bias, torch.arange(3)).on_codes_of(certified)
        assert torch.equal(head.logits(pixels), certified.codes(pixels) @ weight.T + bias)
        noise = Noise.of(seed, [f"{image} {k}" for image in range(8) for k in range(2)])
        pairs = margins(head, pixels, head.logits(pixels).argmax(1), pixels, noise)
        real, executed = (certified_radii(each, Linf(1.0), Crown(), 1e-4) for each in (in_real_numbers(pairs), pairs))
        assert not entered(pairs, executed).any()
        crossed, proved = crossed + int(entered(pairs, real).sum()), proved + int((executed > 0).sum())
    assert crossed, "vacuous: rounding crosses nothing"
    assert proved, "vacuous: nothing is certified"
