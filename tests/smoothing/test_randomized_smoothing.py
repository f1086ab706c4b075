"""Randomized smoothing: on linear maps whose radii are known, beside center smoothing in one pass, against stored counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import Tensor, nn

from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.probes.linear import Linear, LinearScores
from holdfast.probes.neighbours import Knn
from holdfast.smoothing.copies import Copies, least_share, radius, voted
from holdfast.smoothing.evaluations.center_smoothing import CenterSmoothing
from holdfast.smoothing.evaluations.randomized_smoothing import RandomizedSmoothing
from tests.facts import refused, says
from tests.samples import linear, published
from tests.smoothing.test_smoothed import numbers

FEW: dict[str, Any] = {
    "selection": 300,
    "copies": 2000,
    "samples": 12,
    "others": 5,
    "radii": (0.1,),
    "probes": (Linear(), Knn(k=5)),
    "divergences": (L2Distance(),),
}
FAST = RunSettings(batch_size=2048)


def halves(count: int, seed: int) -> Images:
    """Points of the unit square, and whether they are in its right half."""
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed))
    return Images(points.reshape(-1, 1, 1, 2), [f"{seed}-{k}" for k in range(count)], (points[:, 0] > 0.5).long() + 7)


def plane() -> Encoder:
    return linear(torch.eye(2), (1, 1, 2))


def test_radii_of_a_linear_probe_are_the_distances_to_its_boundary():
    images, bank = halves(40, 1), halves(200, 2)
    asked = RandomizedSmoothing(**{**FEW, "copies": 10_000})
    found = asked(plane(), images, FAST, bank)
    population = Population(plane(), images, FAST, bank=Population(plane(), bank, FAST))
    probe = population.learned(Linear())
    assert isinstance(probe, LinearScores)
    normal, offset = probe.weight[1] - probe.weight[0], probe.bias[1] - probe.bias[0]
    rows = [images.ids.index(name) for name in found.findings.ids]
    true = (population.codes[rows].double() @ normal + offset) / normal.norm()
    right = (true > 0).long() + 7 == population.labels[rows]
    certified = torch.tensor(numbers(found, "certified_probe_radius", probe="linear"))
    assert bool((certified <= torch.where(right, true.abs(), 0.0) + 1e-9).all())
    sure = right & (true.abs() > 0.05)
    assert bool((certified[sure] > 0.8 * true.abs()[sure]).all())
    assert 3 < int(sure.sum()) < 12, "vacuous"


def test_averages_count_the_wrong_ones_as_zero_or_not_at_all():
    found = RandomizedSmoothing(**FEW)(plane(), halves(40, 1), FAST, halves(60, 2))
    for probe in ("linear", "knn:k=5"):
        radii = numbers(found, "certified_probe_radius", probe=probe)
        of_right = [
            value for value in numbers(found, "certified_probe_radius_of_correct", probe=probe) if value == value
        ]
        assert found.estimate("average_certified_probe_radius", probe=probe).value == pytest.approx(np.mean(radii))
        mean = found.estimate("average_certified_probe_radius_of_correct", probe=probe).value
        assert mean == pytest.approx(np.mean(of_right))
        held = found.estimate("certified_probe_accuracy", probe=probe)
        assert held.value == np.mean(np.array(radii) > 0.1)
        assert says(held.method, "12 together", "least 0.988")
        assert held.claim is Claim.LOWER
        accuracy = found.estimate("smoothed_probe_accuracy", probe=probe).value
        abstained = found.estimate("probe_abstentions", probe=probe).value
        assert accuracy == len(of_right) / 12 <= 1 - abstained
    (curve, _) = [curve for curve in found.findings.curves if curve.quantity == "certified_accuracy_by_radius"]
    assert curve.y[0] == found.estimate("smoothed_probe_accuracy", probe="linear").value
    assert list(curve.y) == sorted(curve.y, reverse=True)
    assert curve.y[-1] == 0


def test_the_class_is_chosen_by_the_first_copies_alone_and_certified_by_the_others_alone():
    """Theorem 1 needs both samples to be independent: a class chosen by the votes it is certified by is chosen too well."""
    asked = RandomizedSmoothing(**{**FEW, "samples": 4, "probes": (Linear(),)})
    images = Images(halves(20, 1).pixels(range(20)), labels=torch.full((20,), 8))
    population = Population(plane(), images, FAST, bank=Population(plane(), halves(60, 2), FAST))
    # Of classes 7 and 8: both sets say 8; the first says 7 by one vote; the others say 7; the others are undecided.
    first = torch.tensor([[0, 300], [151, 149], [10, 290], [0, 300]])
    votes = torch.tensor([[100, 1900], [0, 2000], [2000, 0], [1000, 1000]])
    observed = {"probe 0.first": first, "probe 0.votes": votes, "copies": torch.full((4,), 2000)}
    found = {one.quantity: one.values for one in asked.conclude(population, range(4), observed).series}
    certified = 0.25 * float(norm.ppf(beta.ppf(0.001, 1900, 101)))
    assert found["certified_probe_radius"] == pytest.approx((certified, 0, 0, 0))
    assert found["smoothed_probe_accuracy"] == (1, 0, 0, 0)
    assert found["probe_abstentions"] == (0, 1, 1, 1)


def test_no_noisy_copy_is_asked_twice():
    """What chooses the centre and the class, what tests the ball and what certifies are three independent samples."""
    asked, shown = RandomizedSmoothing(**{**FEW, "samples": 1, "copies": 400, "probes": (Linear(),)}), list[Tensor]()

    class Watched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            shown.append(x.flatten(1).clone())
            return x.flatten(1)

    encoder = Encoder(Watched(), "watched", Domain((1, 1, 2)))
    population = Population(encoder, halves(20, 1), FAST, bank=Population(plane(), halves(60, 2), FAST))
    observation = asked.observation()
    for fit in observation.fits():
        population.learned(fit)
    assert len(population.codes) == 20
    shown.clear()
    seen = observation.observe(population, observation.rows(population))
    assert [int(seen[f"probe 0.{name}"].sum()) for name in ("first", "votes")] == [300, 400]
    copies = torch.cat(shown)
    assert len(copies) == 300 + 300 + 400
    assert len(copies.unique(dim=0)) == len(copies)


def test_one_pass_serves_center_smoothing_and_every_probe():
    shared = {**FEW, "copies": 4000}
    one, other = RandomizedSmoothing(**shared), CenterSmoothing(**shared, slack=0.15)
    parts = other.observation().parts
    assert one.observation() == parts[0]
    assert RandomizedSmoothing().observation() == CenterSmoothing().observation().parts[0]


def test_center_smoothing_needs_neither_labels_nor_bank_nor_a_probe_that_learned():
    asked = CenterSmoothing(**{**FEW, "samples": 3}, slack=0.25)
    images = halves(20, 1)
    plain = Images(images.pixels(range(20)), images.ids)
    one_class = Images(halves(20, 2).pixels(range(20)), labels=torch.zeros(20, dtype=torch.int64))
    for measured, bank in (
        (plain, None),
        (images, None),
        (images, halves(30, 2)),
        (plain, halves(30, 2)),
        (images, one_class),
    ):
        found = asked(plane(), measured, FAST, bank)
        assert found.estimate("certified_universal_quantile").n == 3


def test_probes_that_cannot_be_asked_say_why():
    asked = RandomizedSmoothing(**{**FEW, "samples": 2})
    images = halves(20, 1)
    one_class = Images(halves(20, 2).pixels(range(20)), labels=torch.zeros(20, dtype=torch.int64))
    unlabelled = Images(halves(20, 2).pixels(range(20)))
    with pytest.raises(HoldfastError, match="needs a bank"):
        asked(plane(), images)
    with pytest.raises(HoldfastError, match="one class"):
        asked(plane(), images, FAST, one_class)
    with pytest.raises(HoldfastError, match="needs labels"):
        asked(plane(), images, FAST, unlabelled)
    with pytest.raises(HoldfastError, match="needs labels"):
        asked(plane(), Images(images.pixels(range(20))), FAST, halves(30, 2))


class Roots(nn.Module):
    """Square roots, which noisy pixels below zero have none of."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sqrt()


def test_codes_that_are_not_finite_vote_for_no_class():
    dark = Images(0.01 * halves(20, 1).pixels(range(20)), labels=torch.arange(20) % 2)
    bank = Images(0.01 * halves(60, 2).pixels(range(60)), labels=torch.arange(60) % 2)
    found = RandomizedSmoothing(**FEW)(Encoder(Roots(), "roots", Domain((1, 1, 2))), dark, FAST, bank)
    for probe in ("linear", "knn:k=5"):
        assert set(numbers(found, "certified_probe_radius", probe=probe)) == {0.0}
        assert set(numbers(found, "probe_abstentions", probe=probe)) == {1.0}


def test_a_class_that_the_bank_does_not_show_is_never_right():
    images = halves(20, 1)
    strange = Images(images.pixels(range(20)), images.ids, torch.full((20,), 99))
    found = RandomizedSmoothing(**FEW)(plane(), strange, FAST, halves(60, 2))
    assert set(numbers(found, "certified_probe_radius", probe="linear")) == {0.0}


def test_order_and_batches_change_nothing_and_the_seed_does():
    images, bank, asked = halves(20, 1), halves(60, 2), RandomizedSmoothing(**{**FEW, "copies": 300})
    forward = asked(plane(), images, RunSettings(), bank)
    flipped = asked(plane(), images[list(range(20))[::-1]], RunSettings(batch_size=37), bank)
    of = dict(zip(flipped.findings.ids, numbers(flipped, "certified_probe_radius", probe="linear"), strict=True))
    assert [of[name] for name in forward.findings.ids] == numbers(forward, "certified_probe_radius", probe="linear")
    reseeded = asked(plane(), images, RunSettings(seed=1), bank)
    assert numbers(reseeded, "certified_probe_radius", probe="linear") != list(of.values())


def test_a_radius_beyond_what_all_copies_could_certify_is_refused():
    with refused(HoldfastError, "copies", "agree"):
        replace(RandomizedSmoothing(**FEW), radii=(0.9,))


@pytest.mark.slow
def test_counts_of_a_published_encoder_to_sampling_error(reference: Path):
    """The noise-trained probe of the reference numbers, on its images, with our noise: each count within five deviations.

    That program clips noisy images, which makes clipping a part of the encoder.
    """
    stored = np.load(reference / "unsupervised" / "smoothing_mnist_base.npz")
    archive = np.load(reference / "images" / "mnist_test.npz")
    pixels: Tensor = (
        torch.from_numpy(archive[next(name for name in archive.files if archive[name].ndim > 1)]).float() / 255
    )
    images = Images(pixels.reshape(-1, 1, 28, 28)[:1000])
    inner = published(reference, "mnist_base", torch.float32)
    clipping = Encoder(nn.Sequential(nn.Hardtanh(0.0, 1.0), inner.module), "clipping", inner.domain)
    population = Population(clipping, images, RunSettings(batch_size=500))
    probe = LinearScores(
        encoder=population.encoder,
        classes=torch.arange(10),
        weight=torch.from_numpy(stored["probe_noise_W"]).double(),
        bias=torch.from_numpy(stored["probe_noise_b"]).double(),
    )
    for place in range(5):
        copies = Copies.of(population, int(stored["rs_N1e4_idx"][place]), 0.25)
        votes = copies.reduced("certify", 10_000, lambda codes: {"votes": voted(probe, codes)[None]})["votes"].sum(0)
        expected = torch.from_numpy(stored["rs_N1e4_counts"][place]).double()
        deviation = (2 * expected * (1 - expected / 10_000)).sqrt().clamp_min(2)
        assert bool(((votes - expected).abs() <= 5 * deviation).all())
        found = float(radius(least_share(votes.max()[None], 10_000, 0.001), 0.25))
        assert found == pytest.approx(float(stored["rs_N1e4_radius"][place]), abs=0.05)
