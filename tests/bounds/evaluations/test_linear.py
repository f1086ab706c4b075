"""The linear radius: closed forms, joint against separate bounds, heads, undefined cases, contradictions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.bounds.certified_pairs import unit_ball
from holdfast.bounds.evaluations.linear_radius import (
    UNDEFINED,
    UNLABELLED,
    HeadRadii,
    LinearHead,
    LinearRadius,
    classifier,
    margins,
    separate_radii,
)
from holdfast.bounds.methods.base import Crown, Interval
from holdfast.bounds.outputs import OutputBounds
from holdfast.bounds.pair_bounds import Certification, certified_radii
from holdfast.core.balls import BALLS
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.probes.linear import Linear as LinearProbe
from tests import samples
from tests.bounds.evaluations.known import Boast, linear_case, sorting
from tests.filled import fill_table
from tests.marks import rest_slow
from tests.samples import builtin, digits, published

QUICK = AdaptiveAttack(restarts=1, steps=20)
SMALL = LinearRadius(samples=8, rivals=2, tolerance=1e-3, attack=QUICK)


def labelled(count: int = 60, classes: int = 3) -> Images:
    """Digits that are told apart by the remainder of their number."""
    plain = digits(count)
    return Images(plain.pixels(range(count)), plain.ids, samples.classes(count) % classes)


@pytest.mark.parametrize("name", BALLS)
def test_the_radius_of_a_linear_encoder_is_known(name: str) -> None:
    encoder, images, weight = linear_case()
    generator = torch.Generator().manual_seed(3)
    head, bias = torch.randn(4, 5, generator=generator).double(), torch.zeros(4).double()
    told = classifier(encoder, head, bias, torch.arange(4))
    x = images.pixels(range(12)).double()
    slope = head @ weight.double()
    logits = x.flatten(1) @ slope.T
    places = logits.argmax(1)
    assert told.right(x, places).all()
    pairs = margins(told, x, places, x, Noise.of(0, [str(k) for k in range(36)]))
    expected = torch.full((12,), torch.inf).double()
    for k, y in enumerate(places.tolist()):
        for j in set(range(4)) - {y}:
            size = unit_ball(name).dual_norm((slope[y] - slope[j])[None])[0]
            expected[k] = torch.minimum(expected[k], (logits[k, y] - logits[k, j]) / size)
    observation = HeadRadii(Certification(12, Crown(), AdaptiveAttack(), 10), name, 3, 1e-6)
    inside = expected < 0.3 * unit_ball(name).norm(x[:1] * 0 + 1)[0]  # the range of pixels cuts no wider ball
    assert inside.sum() > 3, "vacuous"
    seen = observation.radii(pairs, told, places)
    assert (seen["certified"] >= expected * (1 - 1e-3) - 1e-4).all()
    narrow = expected < 0.4
    assert torch.allclose(seen["certified"][narrow], expected[narrow], rtol=2e-3, atol=1e-4)
    assert (seen["attacked"][narrow] >= expected[narrow] * (1 - 1e-9)).all()
    assert torch.allclose(seen["attacked"][narrow], expected[narrow], rtol=0.1)
    assert not seen["refuted"].any()


def test_the_head_is_the_linear_probe_where_there_is_a_labelled_bank() -> None:
    bank = labelled(80)[list(range(40, 80))]
    images, run = labelled(40), RunSettings(precision="float64")
    held = Population(builtin(), bank, run)
    asked = Population(builtin(), images, run, bank=held)
    head, probe = asked.learned(LinearHead(8)), asked.learned(LinearProbe())
    assert head is not None
    pixels = images.pixels(range(40)).double()
    assert torch.allclose(head.logits(pixels), probe.scores(asked.codes), atol=1e-3)
    unlabelled = Population(builtin(), Images(bank.source, bank.ids), run)
    other = Population(builtin(), images, run, bank=unlabelled).learned(LinearHead(8))
    without = Population(builtin(), images, run).learned(LinearHead(8))
    assert other is not None
    assert without is not None
    assert torch.equal(other.logits(pixels), without.logits(pixels))
    assert not torch.allclose(head.logits(pixels), without.logits(pixels), atol=0.1)


def test_bounding_logits_one_by_one_gives_less() -> None:
    images = labelled()
    population = Population(builtin(), images, RunSettings(precision="float64"))
    told = population.learned(LinearHead(8))
    assert told is not None
    x = population.pixels(range(20))
    places = told.places(torch.as_tensor(images.labels)[:20])
    kept = told.right(x, places)
    x, places = x[kept], places[kept]
    assert len(x) > 10
    pairs = margins(told, x, places, x, Noise.of(0, [str(k) for k in range(2 * len(x))]))
    joint = certified_radii(pairs, unit_ball("linf"), Crown(), 1e-4).amin(1)
    apart = separate_radii(pairs, told, places, unit_ball("linf"), Crown(), 1e-4)
    assert (apart < joint).all()
    eye = torch.eye(3).double()
    for k in range(3):  # at its radius the least own logit is proved to exceed the largest others, and not much beyond
        for share, holds in ((0.999, True), (1.01, False)):
            ball = type(unit_ball("linf"))(float(apart[k]) * share)
            rows = torch.cat([eye[places[k]][None], -eye])[None]
            found = OutputBounds(told.certified, Crown(), ball).lower(x[k : k + 1], rows)[0]
            others = [j for j in range(3) if j != places[k]]
            assert bool((found[0] + found[1:][others] > 0).all()) == holds


def test_the_bracket_is_in_order_and_accuracy_is_that_of_the_head() -> None:
    images = labelled()
    result = SMALL(builtin(), images)
    certified, attacked, apart, right = result.series
    assert [s.claim for s in result.series] == [Claim.LOWER, Claim.UPPER, Claim.LOWER, Claim.ESTIMATE]
    assert sum(right.values) >= 5
    for k, is_right in enumerate(right.values):
        assert isnan(certified.values[k]) == (is_right == 0)
        assert not is_right or 0 < apart.values[k] <= certified.values[k] < attacked.values[k]
    assert result.estimate("linear_accuracy").value == pytest.approx(np.mean(right.values))
    assert result.estimate("contradictions").value == 0
    assert result.estimate("contradictions").n == sum(right.values)
    loose = replace(SMALL, method=Interval())(builtin(), images)
    assert loose.estimate("average_linear_radius").value < result.estimate("average_linear_radius").value
    proved, _, left = result.findings.curves
    assert proved.y[0] == left.y[0] == pytest.approx(np.mean(right.values))
    assert all(low <= high for low, high in zip(proved.y, left.y, strict=True))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_head_is_logistic_regression_on_images_that_are_not_measured(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    images = labelled(classes=classes)
    population = Population(builtin(), images, RunSettings(precision="float64"))
    told = population.learned(LinearHead(20))
    assert told is not None
    rows = sorted(set(range(60)) - set(population.choose(20)))
    codes, labels = population.codes, torch.as_tensor(images.labels)
    centred = (codes - codes[rows].mean(0)) / codes[rows].std(0)
    theirs = LogisticRegression(max_iter=5000).fit(centred[rows].numpy(), labels[rows].numpy())
    ours = told.classes[told.logits(population.pixels(range(60))).argmax(1)]
    assert ours.tolist() == theirs.predict(centred.numpy()).tolist()
    assert (ours == labels)[rows].double().mean() > 0.9


@pytest.mark.parametrize("labels", [None, torch.zeros(60, dtype=torch.int64)])
def test_without_labels_it_is_undefined(labels: torch.Tensor | None) -> None:
    images = Images(digits().pixels(range(60)), digits().ids, labels)
    result = SMALL(builtin(), images)
    assert all(isnan(value) for series in result.series for value in series.values)
    assert set(result.series[0].reasons.values()) == {UNLABELLED}
    assert isnan(result.estimate("average_linear_radius").value)
    assert UNLABELLED in (result.estimate("average_linear_radius").reason or "")
    assert not result.findings.curves


def test_an_image_of_an_unknown_class_is_misclassified() -> None:
    images = labelled()
    labels = torch.as_tensor(images.labels).clone()
    (first, *_) = Population(builtin(), images, RunSettings()).choose(8)
    labels[first] = 77
    result = SMALL(builtin(), Images(images.pixels(range(60)), images.ids, labels))
    assert result.series[3].values[0] == 0
    assert result.series[0].reasons[0] == UNDEFINED


def test_an_image_that_no_attack_turned_is_left_at_every_radius() -> None:
    """The curve that attacks leave is never below the certified one; an image that is classified wrongly is in neither."""
    nan = torch.nan
    values = {
        "right": torch.tensor([1.0, 1.0, 0.0]),
        "certified": torch.tensor([0.5, 0.1, nan]),
        "separate": torch.tensor([0.4, 0.1, nan]),
        "attacked": torch.tensor([nan, 0.3, nan]),
    }
    certified, separate, attacked = LinearRadius()._curves(values)
    assert attacked.y[0] == pytest.approx(2 / 3)
    assert attacked.y[-1] >= 1 / 3
    assert all(low <= high for low, high in zip(certified.y, attacked.y, strict=True))
    assert all(low <= high for low, high in zip(separate.y, certified.y, strict=True))


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, method=Boast())(builtin(), labelled())
    (verdict,) = result.findings.verdicts
    assert verdict.status == "refuted"
    assert result.estimate("contradictions").value == result.estimate("contradictions").n > 4
    assert float(verdict.witness["margin"]) <= 0
    assert float(verdict.witness["distance"]) <= float(verdict.witness["certified_radius"]) * (1 + 1e-6)


def _given(images: Images, domain: Domain) -> Images:
    return images


@pytest.mark.slow
def test_an_encoder_that_cannot_be_bounded_is_one_failed_cell(tmp_path: Path) -> None:
    for images in (digits(), labelled()):
        _, (failure,) = fill_table([sorting()], partial(_given, images), [SMALL], RunSettings(), Store(tmp_path))
        assert "'sort'" in failure.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_slow(["mnist_cnn_4layer_a", "mnist_cnn_4layer_a_adv1"]))
def test_published_heads_are_understated_by_separate_bounds(reference: Path, name: str) -> None:
    whole = published(reference, f"{name}__lineval", torch.float64)
    assert isinstance(whole.module, nn.Sequential)
    head = whole.module[-1]
    assert isinstance(head, nn.Linear)
    encoder = Encoder(whole.module[:-1], name, whole.domain)
    told = classifier(encoder, head.weight, head.bias, torch.arange(10))
    shelf = np.load(reference / "images" / "mnist_test.npz")
    x = torch.tensor(shelf["images"][:60]).double() / 255
    labels = torch.tensor(shelf["labels"][:60]).long()
    right = told.right(x, labels)
    assert right.double().mean() > 0.8
    x, labels = x[right], labels[right]
    pairs = margins(told, x[:4], labels[:4], x, Noise.of(0, [str(k) for k in range(36)]))
    joint = certified_radii(pairs, unit_ball("linf"), Crown(), 1e-3).amin(1)
    apart = separate_radii(pairs, told, labels[:4], unit_ball("linf"), Crown(), 1e-3)
    assert (1.05 * apart < joint).all()
