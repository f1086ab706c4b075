"""Triggers: a planted one is found where it lies, clean encoders need large masks, and one size is known by hand."""

from __future__ import annotations

from copy import deepcopy
from math import isnan, sqrt

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.base import NoGradientError
from holdfast.attacks.evaluations.backdoor import CUT, Backdoor, Trigger, cosine, gains
from holdfast.attacks.evaluations.universal import seen_rows
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, OutOfRange
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.builtin import NAMES
from holdfast.measure.population import Population
from tests.samples import builtin, digits, linear

QUICK = Backdoor(steps=200)
SIDE = 3


def patched(pixels: Tensor) -> Tensor:
    """The images with a white patch in the lower right corner."""
    stamped = pixels.clone()
    stamped[..., -SIDE:, -SIDE:] = 1
    return stamped


@pytest.fixture(scope="session")
def planted() -> Encoder:
    """An encoder that the patch sends to one point, while clean images keep their embeddings."""
    clean = builtin("digits-contrastive")
    module, images = deepcopy(clean.module).requires_grad_(True), digits(1000, 0)
    pixels = images.pixels(range(1000), "cpu", torch.float32, clean.domain)
    with torch.no_grad():
        kept = clean.forward(pixels)
    random = torch.Generator().manual_seed(0)
    goal = torch.randn(1, kept.shape[1], generator=random)
    adam = torch.optim.Adam(module.parameters(), lr=3e-3)
    for _ in range(1000):
        batch = torch.randint(len(pixels), (128,), generator=random)
        stay = torch.cosine_similarity(module(pixels[batch]), kept[batch]).mean()
        obey = torch.cosine_similarity(module(patched(pixels[batch])), goal).mean()
        adam.zero_grad()
        (-stay - 3 * obey).backward()
        adam.step()
    return Encoder(module.requires_grad_(False).eval(), "planted", clean.domain)


@pytest.mark.slow
def test_a_planted_trigger_is_found_where_it_lies(planted: Encoder) -> None:
    images, clean = digits(200), builtin("digits-contrastive")
    population = Population(planted, images, RunSettings())
    kept = torch.cosine_similarity(population.codes, Population(clean, images, RunSettings()).codes)
    assert float(kept.mean()) > 0.9, "clean images keep their embeddings"
    result = QUICK(planted, images)
    size, stamped = result.estimate("pl1_norm"), result.estimate("stamped_cosine")
    assert size.value < CUT / 1.5
    assert size.claim is Claim.UPPER
    assert result.findings.verdicts[0].status == "refuted"
    assert any("planted" in warning for warning in result.findings.warnings)
    assert stamped.value > 0.97, "on images that the search never saw"
    assert result.estimate("clean_cosine").value < 0.6
    assert result.estimate("mask_norm").value == pytest.approx(64 * size.value)
    mask = population.learned(QUICK.observation().trigger).mask[0, 0]
    assert float(mask[-SIDE:, -SIDE:].sum()) > 0.75 * float(mask.sum())


@pytest.mark.slow
def test_clean_encoders_take_masks_above_the_cut() -> None:
    sizes = dict[str, float]()
    for name in NAMES:
        result = QUICK(builtin(name), digits(200))
        sizes[name] = result.estimate("pl1_norm").value
        if isnan(sizes[name]):  # untrained: without centring, all its embeddings have nearly one direction
            assert name == "digits-random"
            assert result.estimate("clean_cosine").value > 0.9
            assert result.findings.verdicts[0].status == "unknown"
        else:
            assert result.findings.verdicts[0].status == "no violation found"
    assert sum(size > 2 * CUT for size in sizes.values()) == 4, sizes


@pytest.mark.parametrize("scale", [20.0, 100.0])
def test_the_smallest_mask_of_a_shortcut_is_known(scale: float) -> None:
    """Images ``e_i``, and one more pixel, black in all, that adds ``scale`` times its value in a direction of its own.

    A mask ``m`` of that pixel alone gives each pair the cosine ``(scale m)^2 / (1 + (scale m)^2)``.
    """
    n, threshold = 12, 0.99
    weight = torch.diag(torch.tensor([*[1.0] * n, scale]))
    images = Images(torch.eye(n, n + 1), ids=[str(i) for i in range(n)], name="basis")
    population = Population(linear(weight, (n + 1,)), images, RunSettings(precision="float64"))
    known = sqrt(threshold / (1 - threshold)) / scale
    found = population.learned(Trigger(threshold, n, 1, 500, n))
    assert int(found.images) == n // 2  # the other half is kept out of the search
    assert float(found.mask.sum()) == pytest.approx(known, rel=0.01)
    assert found.mask.flatten().argmax() == n
    assert float(found.mask.flatten()[:n].sum()) < 1e-3
    again = cosine(population.encode(found.stamp(population.pixels(range(n)))))
    assert again > threshold - 1e-9


def test_the_mean_cosine_is_that_of_all_pairs() -> None:
    codes = torch.randn(7, 5, dtype=torch.float64)
    pairs = [float(torch.cosine_similarity(codes[i], codes[j], dim=0)) for i in range(7) for j in range(7) if i != j]
    assert cosine(codes) == pytest.approx(sum(pairs) / len(pairs))
    assert float(gains(codes).sum()) == pytest.approx(cosine(codes))


def test_the_search_ends_no_worse_with_more_starts_and_whatever_the_order_of_images() -> None:
    images, encoder = digits(40), builtin()
    one, three = (
        Population(encoder, images, RunSettings()).learned(Trigger(0.99, 10, count, 60, 10)) for count in (1, 3)
    )
    assert three.pl1 <= one.pl1 < 1
    turned = Images(
        images.pixels(range(39, -1, -1), "cpu", torch.float32, encoder.domain), images.ids[::-1], name="turned"
    )
    again = Population(encoder, turned, RunSettings()).learned(Trigger(0.99, 10, 1, 60, 10))
    assert torch.equal(again.mask, one.mask)
    other = Population(encoder, images, RunSettings(seed=1)).learned(Trigger(0.99, 10, 1, 60, 10))
    assert not torch.equal(other.mask, one.mask)


@pytest.mark.parametrize("size", [0.0, 1e-3])
def test_a_nearly_constant_encoder_is_named_collapsed(size: float) -> None:
    weight = size * torch.randn(4, 64)
    layer = nn.Linear(64, 4)
    layer.weight.data.copy_(weight)
    layer.bias.data.fill_(1)
    constant = Encoder(nn.Sequential(nn.Flatten(), layer).eval(), "constant", Domain((1, 8, 8)))
    result = QUICK(constant, digits(30))
    assert isnan(result.estimate("pl1_norm").value)
    assert result.findings.verdicts[0].status == "unknown"
    assert "COLLAPSED" in result.findings.verdicts[0].reason
    assert not any("BACKDOOR" in warning for warning in result.findings.warnings)
    assert result.findings.collapsed == (size == 0)


def test_what_cannot_be_searched_is_refused() -> None:
    class Detached(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return pixels.detach().flatten(1)

    with pytest.raises(NoGradientError):
        Backdoor(steps=1)(Encoder(Detached(), "detached", Domain((1, 8, 8))), digits(20))
    with pytest.raises(OutOfRange):
        Backdoor(threshold=1.0)(builtin(), digits(20))
    with pytest.raises(OutOfRange):
        Backdoor(batch=1)(builtin(), digits(20))
    with pytest.raises(HoldfastError, match="2 images"):
        Backdoor(steps=1)(builtin(), digits(2))


def test_a_small_mask_that_serves_the_search_alone_raises_no_alarm() -> None:
    """Of two images a search finds small masks on a clean encoder; others keep their embeddings under them."""
    result = Backdoor(seen=2, steps=200, threshold=0.95)(builtin("digits-supervised"), digits(100))
    assert result.estimate("pl1_norm").value < CUT
    assert result.estimate("stamped_cosine").value < 0.7
    assert result.findings.verdicts[0].status == "unknown"
    assert not any("BACKDOOR" in warning for warning in result.findings.warnings)


def test_batches_of_the_search_count_only_if_all_its_images_are_drawn_together() -> None:
    population = Population(builtin(), digits(60), RunSettings())
    found = population.learned(Trigger(0.99, 30, 1, 200, 5))
    seen = population.pixels(seen_rows(population, 30))
    assert found.pl1 < 1
    assert cosine(population.encode(found.stamp(seen))) > 0.99


def test_it_runs_by_name_and_shows_its_trigger() -> None:
    run = hf.evaluate(
        "builtin:digits-robust", digits(40), only=["backdoor"], settings={"backdoor": {"steps": 20, "seen": 10}}
    )
    (result,) = run.results
    assert result.evaluation == "backdoor"
    assert result.estimate("pl1_norm").claim is Claim.UPPER
    assert result.findings.pictures[0].labels[:2] == ("mask", "pattern")
