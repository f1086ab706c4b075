"""The radius at which each image gives way: known answers, the law of fixed radii, what it costs, what is never found."""

from __future__ import annotations

from math import inf, isinf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_radii import EVENTS
from holdfast.attacks.base import GRADIENT, Attack
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.pair_attacks import EachOfTwo, halves
from holdfast.attacks.presets import U_PGD
from holdfast.attacks.radius_search import COST, Goal, minimum_norm, nearest_events, search_forwards
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.records import Claim, Result, Series
from holdfast.core.run_settings import RunSettings
from holdfast.core.statistics.differences import paired
from holdfast.core.statistics.intervals import quantile_interval
from holdfast.core.statistics.quantiles import lost_curve, radius_estimates
from holdfast.measure.population import Population
from holdfast.probes.evaluations.probe_radius import ProbeRadius
from holdfast.probes.evaluations.robust_accuracy import RobustAccuracy
from tests.samples import builtin, digits, doubled, linear

DOUBLE = RunSettings(precision="float64")
CHEAP: dict[str, Any] = {"attack": AdaptiveAttack(restarts=1), "fixed": (AdaptiveAttack(restarts=1),)}


def values(result: Result, quantity: str) -> np.ndarray[Any, Any]:
    """The values of the first series of this name, by image."""
    return np.array(next(series.values for series in result.series if series.quantity == quantity))


@pytest.fixture
def points() -> tuple[Encoder, Images, Tensor]:
    """A linear encoder and images in the middle of the range, so that the range cuts no ball; and its matrix."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(5, 16, generator=generator, dtype=torch.float64)
    pixels = 0.5 + 0.1 * (torch.rand(12, 1, 4, 4, generator=generator, dtype=torch.float64) - 0.5)
    encoder = linear(weight.float(), (1, 4, 4)).to("cpu", torch.float64)
    return encoder, Images(pixels, [f"p{k}" for k in range(12)]), weight.float().double()


@pytest.mark.parametrize("widest", [Linf(0.3), L2(1.0)], ids=str)
def test_retrieval_of_a_linear_encoder_is_the_distance_to_the_nearest_bisector(
    widest: Ball, points: tuple[Encoder, Images, Tensor]
) -> None:
    """``min over x' of (|z' - z|^2 / 2) / dual norm of W^T (z' - z)``, image by image."""
    encoder, images, weight = points
    result = AttackRadius(widest=widest, events=("retrieval",))(encoder, images, DOUBLE)
    codes = images.pixels(range(12)).double().flatten(1) @ weight.T
    for place, name in enumerate(result.findings.ids):
        row = images.ids.index(name)
        gaps = torch.cat([codes[:row], codes[row + 1 :]]) - codes[row]
        slopes = widest.dual_norm((gaps @ weight).reshape(-1, 1, 4, 4))
        exact = float((gaps.square().sum(1) / 2 / slopes).min())
        found = float(values(result, "attack_radius")[place])
        assert exact - 1e-9 <= found <= exact * 1.03, name


def test_events_of_pairs_by_hand() -> None:
    """One pixel, codes that are pixels: half way, .06, each of .40 and .52 is nearer to the other.

    The two collide where the impostor, at .52 - r, is nearer to .40 than the image itself, moved to .40 +- r: from .06 on.
    """
    encoder = Encoder(nn.Flatten().eval(), "identity", Domain((1, 1, 1)))
    images = Images(torch.tensor([[[[0.4]]], [[[0.52]]]]), ["a", "b"])
    result = AttackRadius()(encoder, images, DOUBLE)
    assert values(result, "attack_radius") == pytest.approx([0.06, 0.06], rel=1e-2)
    for quantity, exact in (("impersonation_radius", 0.06), ("overlap_radius", 0.06)):
        known = values(result, quantity)
        known = known[~np.isnan(known)]
        assert len(known) == 1, "no two pairs share an image"
        assert known == pytest.approx([exact], rel=2e-2)


def test_copies_have_no_radius() -> None:
    """Images at .40, again at .40, and at .52: of the first two one counts; a copy cannot be taken for its original."""
    encoder, attack = Encoder(nn.Flatten().eval(), "identity", Domain((1, 1, 1))), AdaptiveAttack(restarts=1, steps=5)
    images = Images(torch.tensor([0.4, 0.4, 0.52]).reshape(-1, 1, 1, 1), ["one", "copy", "other"])
    asked = AttackRadius(attack=attack, fixed=(attack,), pairwise=attack, balls=(Linf(0.01),), events=("retrieval",))
    result = asked(encoder, images, DOUBLE)
    found = dict(zip(result.findings.ids, values(result, "attack_radius"), strict=True))
    assert np.isnan([found["one"], found["copy"]]).sum() == 1
    assert (np.nanmax([found["one"], found["copy"]]), found["other"]) == pytest.approx((0.06, 0.06), rel=0.05)
    alone = Population(encoder, images[[0, 1]], DOUBLE)
    for event, search in EVENTS.items():
        assert not search(alone, [0, 1], L2Distance(), 10).defined.any(), event


def test_no_radius_is_smaller_than_what_every_point_of_a_grid_says() -> None:
    """Brute force: two pixels, a net with kinks; on a fine grid, nothing nearer shows the event."""
    generator = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    for weight in net.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    encoder = Encoder(net.eval(), "kinks", Domain((2,)))
    pixels = torch.rand(8, 2, generator=generator, dtype=torch.float64)
    images = Images(pixels, [str(k) for k in range(8)])
    result = AttackRadius(events=("retrieval",))(encoder, images, DOUBLE)
    steps = torch.linspace(0, 1, 401, dtype=torch.float64)
    grid = torch.cartesian_prod(steps, steps)
    distances = torch.cdist(encoder.forward(grid), encoder.forward(pixels))
    for place, name in enumerate(result.findings.ids):
        row = int(name)
        lost = distances.argmin(1) != row
        nearest = float((grid[lost] - pixels[row]).abs().amax(1).min())
        found = float(values(result, "attack_radius")[place])
        assert found >= nearest - 2 / 400, "the grid holds a point within one step of any"
        assert found <= nearest * 1.25 + 2 / 400


def test_no_radius_is_larger_than_that_of_a_fixed_attack_that_succeeded() -> None:
    """Of the same run and with its settings; the search alone, so weak, would break the law."""
    balls, attacks = (Linf(0.03), Linf(0.05), Linf(0.1)), (GradientAttack(steps=20), AdaptiveAttack(restarts=1))
    pairwise, weak = AdaptiveAttack(restarts=1), SquareAttack(queries=2)
    images, encoder = digits(40), doubled(builtin())
    breakaway = Breakaway(balls, attacks, (L2Distance(),), 40, pairwise)
    search = AttackRadius(attack=weak, events=("retrieval",), samples=40)
    radii = search.beside(breakaway)
    assert set(breakaway.observation().parts) < set(radii.observation().parts), "attacked twice"
    result, alone = (asked(encoder, images, DOUBLE) for asked in (radii, search))
    other = breakaway(encoder, images, DOUBLE)
    found = dict(zip(result.findings.ids, values(result, "attack_radius"), strict=True))
    without = dict(zip(alone.findings.ids, values(alone, "attack_radius"), strict=True))
    broken = 0
    for series in other.series:
        if series.quantity == "nearest_neighbour_kept":
            ball = Ball.read(series.conditions["ball"])
            for image, kept in zip(other.findings.ids, series.values, strict=True):
                if kept == 0 and not np.isnan(found[image]):
                    assert found[image] <= ball.radius, (image, series.conditions)
                    broken += without[image] > ball.radius
    assert broken, "vacuous: the search alone was never behind"
    assert all(found[image] <= radius or np.isnan(radius) for image, radius in without.items())
    assert any(0 < radius < inf for radius in without.values()), "vacuous: the search finds nothing"


def test_no_probe_radius_is_larger_than_that_of_a_fixed_attack_that_succeeded() -> None:
    from tests.test_laws import bank
    from tests.test_laws import digits as labelled

    balls, attacks = (Linf(0.03), Linf(0.06)), (AdaptiveAttack(restarts=1, steps=10),)
    encoder, images = builtin("digits-contrastive"), labelled(25)
    radii = ProbeRadius(attack=SquareAttack(queries=2), balls=balls, fixed=attacks)(encoder, images, DOUBLE, bank())
    robust = RobustAccuracy(balls=balls, attacks=attacks, samples=300)(encoder, images, DOUBLE, bank())
    compared = 0
    for series in robust.series:
        if series.quantity == "robust":
            found = next(s for s in radii.series if s.conditions["probe"] == series.conditions["probe"])
            for radius, right in zip(found.values, series.values, strict=True):
                if right == 0:
                    compared += radius > 0
                    assert radius <= Ball.read(series.conditions["ball"]).radius * (1 + 1e-6)
    assert compared, "vacuous: no attack succeeded"


@pytest.mark.parametrize(
    "attack",
    [
        AdaptiveAttack(),
        AdaptiveAttack(restarts=1),
        AdaptiveAttack(restarts=1, steps=10),
        U_PGD,
        SquareAttack(queries=50),
    ],
    ids=str,
)
def test_a_search_costs_at_most_four_times_its_attack(attack: Attack) -> None:
    population = Population(builtin(), digits(6), RunSettings())
    forwards, context = 0.0, population.context(range(6))

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = population.encoder.module

        def forward(self, x: Tensor) -> Tensor:
            nonlocal forwards
            forwards += (GRADIENT if x.requires_grad else 1) * len(x) / 6
            return self.inside(x)

    encoder, clean = population.encoder.to("cpu", torch.float32), population.codes[:6]
    encoder = Encoder(Counting().eval(), "counting", encoder.domain)
    forwards = 0.0
    inner = encoder.module
    goal = Goal(encoder, context.pixels, lambda z: (z - clean).norm(dim=1) - 1, lambda z: (z - clean).norm(dim=1) > 1)
    assert isinstance(inner, nn.Module)
    nearest_events(goal, attack, Linf(0.3), context.noise)
    assert 0 < forwards <= search_forwards(attack) + 1e-6
    assert search_forwards(attack) <= COST * attack.forward_passes


@pytest.mark.parametrize(
    "widest", [Linf(0.25), L2(4.0), EachOfTwo(0.25, Linf), EachOfTwo(4.0, L2)], ids=lambda b: b.name
)
def test_the_minimum_norm_attack_stays_within_and_finds_what_is_positive(widest: Ball) -> None:
    two = isinstance(widest, EachOfTwo)
    pixels = digits(8).pixels(range(8)).double()
    pixels = torch.cat([pixels, pixels.flip(0)], 1) if two else pixels
    weight = torch.randn(pixels[0].numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    encoder = linear(weight[None].float(), tuple(pixels.shape[1:])).to("cpu", torch.float64)
    clean = encoder.forward(pixels)[:, 0]
    noise = Noise.of(0, [str(k) for k in range(8)])

    def gain(codes: Tensor) -> Tensor:
        return codes[:, 0] - clean - 0.5

    found, ends = minimum_norm(encoder, pixels, gain, widest, 20, noise)
    assert (gain(encoder.forward(found)) > 0).all()
    assert (widest.norm(found - pixels) < widest.radius).all(), "some image was not lost"
    for moved in (found, ends):
        assert (widest.norm(moved - pixels) <= widest.radius * (1 + 1e-9)).all()
        assert moved.min() >= 0
        assert moved.max() <= 1
    least = 0.5 / widest.dual_norm(weight.reshape(1, *pixels.shape[1:]))
    assert (widest.norm(found - pixels) >= least * (1 - 1e-9)).all(), "nearer than any change can be"
    other, _ = minimum_norm(encoder, pixels, gain, widest, 20, Noise.of(1, [str(k) for k in range(8)]))
    assert not torch.equal(found, other), "vacuous: the seed changes nothing"


def test_the_ball_of_two_images_is_the_larger_change() -> None:
    delta = torch.tensor([[[[0.1]], [[-0.3]]], [[[0.5]], [[0.2]]]])
    ball = EachOfTwo(0.25, Linf)
    assert ball.norm(delta).tolist() == pytest.approx([0.3, 0.5])
    assert ball.dual_norm(delta).tolist() == pytest.approx([0.4, 0.7])
    assert ball.project(delta).flatten().tolist() == pytest.approx([0.1, -0.25, 0.25, 0.2])
    assert halves(delta).flatten().tolist() == pytest.approx([0.1, -0.3, 0.5, 0.2])
    assert ball.scaled(0.5) == EachOfTwo(0.125, Linf)


def radii(*numbers: float) -> Series:
    conditions = {"ball": "linf:0.5"}
    return Series(
        quantity="attack_radius",
        conditions=conditions,
        values=numbers,
        unit="linf distance",
        claim=Claim.UPPER,
        of="radius",
    )


def test_images_never_lost_are_beyond_every_radius() -> None:
    encoder = Encoder(nn.Flatten().eval(), "identity", Domain((1, 1, 1)))
    images = Images(torch.tensor([0.1, 0.2, 0.9]).reshape(-1, 1, 1, 1), ["a", "b", "c"])
    result = AttackRadius(widest=Linf(0.2), events=("retrieval",), samples=3)(encoder, images, DOUBLE)
    assert sorted(values(result, "attack_radius")) == pytest.approx([0.05, 0.05, inf], rel=1e-2)
    curve = result.findings.curves[0]
    assert max(curve.y) == pytest.approx(2 / 3)
    assert curve.x[-1] == pytest.approx(255 * 0.05 * 1.1, rel=1e-2)
    assert list(curve.y) == sorted(curve.y), "the share lost grows with the radius"
    text = result.model_dump_json()
    assert Result.model_validate_json(text).model_dump_json() == text


def test_a_median_beyond_what_was_searched_is_infinite_and_so_are_its_ends() -> None:
    median, first, third = radius_estimates(radii(*[0.1] * 8, *[inf] * 12))
    assert (median.value, median.low, median.high) == (inf, 0.1, inf)
    assert (first.value, first.high) == (0.1, inf)
    assert (third.value, third.low) == (inf, inf)
    assert lost_curve(radii(inf, inf), "linf") == ()
    assert isinf(radius_estimates(radii(inf, nan))[0].value)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("n", [12, 40, 100])
def test_intervals_of_quantiles_cover_exactly(n: int, share: float) -> None:
    """By the binomial distribution: the order statistics of uniform draws around the quantile."""
    from scipy.stats import binom

    low, high = quantile_interval(np.arange(1.0, n + 1), share)
    below = binom.cdf(low - 1, n, share) if np.isfinite(low) else 0.0
    above = binom.sf(high - 1, n, share) if np.isfinite(high) else 0.0
    assert below <= 0.025
    assert above <= 0.025


def test_censored_encoders_are_compared_image_by_image() -> None:
    weak, strong = radii(*np.linspace(0.1, 0.2, 40).tolist()), radii(*[0.3] * 15, *[inf] * 25)
    difference = paired(strong, weak, "median", "higher")
    assert difference.outcome == "a is better"
    assert paired(weak, strong, "median", "higher").outcome == "b is better"
    both = paired(strong, strong, "median", "higher")
    assert both.outcome == "tied", "of two medians beyond the search neither is known to be larger"


def test_unknown_events_are_refused() -> None:
    with pytest.raises(HoldfastError, match=r"Did you mean 'retrieval'"):
        AttackRadius(events=("retrievl",))


def test_one_image_is_lost_to_nobody() -> None:
    with pytest.raises(HoldfastError, match="image"):
        AttackRadius(**CHEAP)(builtin(), digits(1), RunSettings())


def test_the_picture_shows_the_image_that_gives_way_first() -> None:
    result = AttackRadius(**CHEAP, samples=10, events=("retrieval",))(builtin(), digits(20), RunSettings())
    (picture,) = result.findings.pictures
    smallest = result.findings.ids[int(np.nanargmin(values(result, "attack_radius")))]
    assert picture.caption.startswith(f"{smallest}: attack radius")
    assert picture.labels == ("clean", "attacked", "nearest image", "change")


def test_probes_that_answer_in_double_precision_are_attacked_in_single() -> None:
    """As a run does by default; the laws run in double precision throughout."""
    from tests.test_laws import bank
    from tests.test_laws import digits as labelled

    result = ProbeRadius(**CHEAP)(builtin(), labelled(12), RunSettings(), bank())
    assert all(0 <= estimate.value < inf for estimate in result.estimates)
