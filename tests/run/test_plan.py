"""What quick asks of encoders on a CPU: a total of forwards that no encoder exceeds, however large."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.baseline import raw_pixels
from holdfast.measure.evaluation import fits_of, parts
from holdfast.measure.population import Population
from holdfast.run.catalog import HEAVY, most_forwards
from holdfast.run.inputs import encoders_of
from holdfast.run.plan import drop_unreachable
from holdfast.run.request import Request, planned
from tests.facts import warned

COUNT = 144


def forward_passes(operations: int) -> int:
    """Return the forwards that quick asks of an encoder of so many operations, what is shared counted once."""
    encoder = Encoder(nn.Flatten(), "pixels", Domain((1, 8, 8)))
    population = Population(encoder, Images(torch.rand(COUNT, 1, 8, 8)), RunSettings())
    plan, total = planned(Request(), operations), 0
    for fit in dict.fromkeys(fit for evaluation in plan for fit in fits_of(evaluation)):
        with suppress(HoldfastError):  # a probe, which there is no bank for
            total += fit.forward_passes(population)
    for part in dict.fromkeys(part for evaluation in plan for part in parts(evaluation.observation())):
        with suppress(HoldfastError):
            total += len(part.rows(population)) * part.forward_passes(population)
    return total


@pytest.mark.parametrize("operations", [10**8, 768_000_000, 8 * 10**9, 10**11])
def test_heavy_encoders_share_one_total(operations: int) -> None:
    assert most_forwards() / 2 < forward_passes(operations) <= most_forwards()
    assert planned(Request(), operations) == planned(Request(), HEAVY), "the same command asks for the same"


@pytest.mark.parametrize("operations", [10**6 + 1, 6 * 10**6, 3 * 10**7, 10**8 - 1])
def test_lighter_ones_take_no_more_operations_than_three_times_those_of_the_lightest_heavy_one(operations: int) -> None:
    assert forward_passes(operations) * operations <= 3 * most_forwards() * HEAVY


def test_attacks_on_heavy_encoders_look_at_thirty_images() -> None:
    plan = {evaluation.name: evaluation for evaluation in planned(Request(), HEAVY)}
    for name in ("breakaway", "displacement", "overlap", "impersonation", "masking"):
        assert vars(plan[name])["samples"] == 30


def test_pixels_beside_a_network_too_large_for_bounds_bring_no_proofs_back() -> None:
    domain, whole = Domain((3, 32, 32)), planned(Request())

    def encoder(name: str, *parts: nn.Module) -> Encoder:
        return Encoder(nn.Sequential(*parts, nn.Flatten()), name, domain, mean=[0.0] * 3, std=[1.0] * 3)

    large, small = encoder("large", nn.Conv2d(3, 64, 1), nn.ReLU()), encoder("small")
    with warned(HoldfastWarning, "least 65", "certified-displacement", "536", "large"):
        left = drop_unreachable(Request(), whole, [large, raw_pixels(domain)])
    assert {each.name for each in whole} - {each.name for each in left} >= {
        "certified-displacement",
        "certified-radius",
    }
    assert drop_unreachable(Request(), whole, [large, small]) == whole, "vacuous: they are left out of every run"
    assert drop_unreachable(Request(), whole, [raw_pixels(domain)]) == whole


def test_an_encoder_without_weights_leaves_its_random_baseline_out() -> None:
    flat, domain = Encoder(nn.Flatten(), "flat", Domain((1, 8, 8))), Domain((1, 8, 8))
    network = Encoder(nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), "network", domain)
    request = Request(encoders=("flat", "network"), baselines=("random",), images="builtin:digits")
    with pytest.warns(HoldfastWarning, match="flat"):
        encoders = encoders_of(request, {"flat": flat, "network": network})
    assert [encoder.name for encoder in encoders] == ["flat", "network", "network (random weights)"]
