"""Universal perturbations, transfer and query-only attacks, where what they must find is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import CodesUnderNoise, Untargeted
from holdfast.attacks.black_box import NaturalEvolution, SquareAttack
from holdfast.attacks.evaluations.query_only import QueryOnly
from holdfast.attacks.evaluations.transfer import Transfer, Transferred
from holdfast.attacks.evaluations.universal import (
    Universal,
    UniversalPerturbation,
    UniversalRisk,
    seen_and_unseen,
    seen_rows,
)
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.population import Population
from holdfast.measure.store import key_of
from holdfast.run.plan import set_encoders
from holdfast.run.request import Request, planned
from tests.facts import refused, says
from tests.samples import builtin, digits, linear

DOUBLE = RunSettings(precision="float64")
ATTACK = GradientAttack(steps=5)
SMALL: dict[str, Any] = {"balls": (Linf(0.1),), "attacks": (ATTACK,), "samples": 20}
WEIGHT = torch.tensor([[0.5, -2.0, 1.0, 0.25]])


def grey(count: int) -> Images:
    """Images so far from the ends of the range that no perturbation is clipped."""
    drawn = torch.rand(count, 1, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    return Images(drawn, ids=[f"grey-{k}" for k in range(count)])


def perturbation(ball: Ball, **settings: int) -> UniversalPerturbation:
    return UniversalPerturbation(ball, L2Distance(), **{"seen": 10, "restarts": 2, "steps": 60, "batch": 4} | settings)


@pytest.mark.parametrize("ball", [Linf(0.1), L2(0.1), L1(0.1)], ids=str)
def test_the_universal_perturbation_of_a_linear_encoder_has_a_closed_form(ball: Ball) -> None:
    """``|w . v|`` is largest at the steepest point of the ball, whichever of its two signs."""
    population = Population(linear(WEIGHT, (1, 2, 2)), grey(20), DOUBLE)
    learned = population.learned(perturbation(ball))
    steepest = ball.radius * ball.steepest(WEIGHT.double().reshape(1, 1, 2, 2))
    assert torch.allclose(learned * torch.sign((learned * steepest).sum()), steepest, atol=2e-3)


class Steeper(nn.Module):
    """Codes that move three times as far where pixels grow."""

    def forward(self, pixels: Tensor) -> Tensor:
        away = pixels.flatten(1) - 0.5
        return torch.where(away > 0, 3 * away, away)


def test_of_all_restarts_the_best_perturbation_counts() -> None:
    """Searches that start below the images end there: by hand at a displacement of .1, and of .3 above."""
    images = Images(0.5 + 0.001 * torch.arange(6).reshape(-1, 1, 1, 1))
    population = Population(Encoder(Steeper(), "steeper", Domain((1, 1, 1))), images, DOUBLE)
    fit = perturbation(Linf(0.1), restarts=6, steps=20)
    noise, rows = population.run.noise([fit.name]), seen_rows(population, fit.seen)
    ends = [float(fit._search(population, rows, noise.fork(restart))) for restart in range(fit.restarts)]
    assert min(ends) < 0 < max(ends), "vacuous: all searches end at one side"
    assert float(population.learned(fit)) == pytest.approx(0.1, abs=1e-3)


def test_one_for_all_is_as_bad_as_one_for_each_where_the_encoder_is_linear() -> None:
    evaluation = UniversalRisk(**{**SMALL, "attacks": (AdaptiveAttack(),)})
    result = evaluation(linear(WEIGHT, (1, 2, 2)), grey(20), DOUBLE)
    for images in ("seen", "unseen"):
        kept = result.estimate("harm_kept", attack="one for all images", images=images)
        assert kept.value == pytest.approx(1, abs=1e-3)
        assert kept.n == 10
        assert result.estimate("harm_kept", attack="random noise", images=images).value < 0.95


def test_what_is_shown_stays_in_the_ball_and_the_range() -> None:
    population = Population(builtin(), digits(20), DOUBLE)
    way = Universal(perturbation(Linf(0.1), steps=5), 20)
    pixels, moved = population.pixels(range(20)), way.pixels(population, range(20))
    assert float((moved - pixels).abs().amax()) <= 0.1 + 1e-12
    assert (float(moved.min()), float(moved.max())) == (0, 1)
    delta = population.learned(way.perturbation)
    assert torch.equal(moved, (pixels + delta).clamp(0, 1)), "one perturbation for all"


def test_copies_and_groups_stay_on_one_side() -> None:
    plain = digits(12)
    pixels = torch.cat([plain.pixels(range(12)), plain.pixels(range(6))])
    ids = [f"image-{k}" for k in range(18)]
    copies = Population(builtin(), Images(pixels, ids), DOUBLE)
    seen, unseen = seen_and_unseen(copies, range(18), 3)
    assert int(seen.sum()) == 3
    known = {copies.first_copies[k].item() for k in seen.nonzero()[:, 0].tolist()}
    assert not known & {copies.first_copies[k].item() for k in unseen.nonzero()[:, 0].tolist()}
    grouped = Population(builtin(), Images(pixels[:12], ids[:12], groups=["a", "b", "c", "d"] * 3), DOUBLE)
    half = seen_rows(grouped, 100)
    assert len(half) == 6
    assert len({row % 4 for row in half}) == 2, "two of the four groups, whole"


def test_groups_are_in_the_key_of_what_is_learned_by_them() -> None:
    plain = digits(4)
    grouped = Images(plain.pixels(range(4)), plain.ids, groups=["a", "a", "b", "b"])
    keys = [key_of(perturbation(Linf(0.1)), builtin(), images, DOUBLE) for images in (plain, grouped)]
    assert keys[0] != keys[1]


def test_noise_is_as_large_as_the_ball_allows() -> None:
    identity = Encoder(nn.Flatten(), "pixels", Domain((1, 2, 2)))
    population = Population(identity, grey(5), DOUBLE)
    for ball in (Linf(0.1), L2(0.1), L1(0.1)):
        moved = CodesUnderNoise(ball, 5).observe(population, range(5))["codes"] - population.codes
        assert ball.norm(moved).tolist() == pytest.approx([0.1] * 5)


def test_transfer_to_oneself_is_ones_own_attack() -> None:
    encoder = builtin()
    population = Population(encoder, digits(20), DOUBLE)
    transferred = Transferred(Linf(0.1), ATTACK, L2Distance(), encoder.fingerprint, 20)
    itself = Untargeted(Linf(0.1), (ATTACK,), L2Distance(), 20)
    codes = itself.of_attack(ATTACK, itself.observe(population, range(20)))["codes"]
    assert torch.equal(transferred.observe(population, range(20))["codes"], codes)
    result = Transfer(**SMALL, attack=ATTACK)(encoder, digits(20), DOUBLE, others=[builtin("digits-random")])
    kept = {e.conditions.get("surrogate"): e.value for e in result.estimates if e.quantity == "harm_kept"}
    assert kept["digits-contrastive"] == 1
    assert 0 < kept["digits-random"] < 1
    assert kept.keys() == {"digits-contrastive", "digits-random", None}


def test_keys_of_transfer_hold_the_surrogate() -> None:
    here, other, third = builtin(), builtin("digits-random"), builtin("digits-robust")
    plans = [Transfer().among(encoders) for encoders in ([here, other], [here, third], [other, here])]
    keys = [key_of(plan, here, digits(4), DOUBLE) for plan in plans]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2], "the order of encoders decides nothing"
    assert plans[0].among([here, other]) == plans[0]


class Detached(nn.Module):
    """Codes without a gradient, as those of a quantised network."""

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.detach().flatten(1)


def test_surrogates_of_another_size_see_resized_images_and_others_are_left_out() -> None:
    here = builtin()
    smaller = Encoder(nn.Flatten(), "smaller", Domain((1, 4, 4)))
    vectors = Encoder(nn.Flatten(), "vectors", Domain((64,)))
    detached = Encoder(Detached(), "detached", here.domain)
    result = Transfer(**SMALL, attack=ATTACK)(here, digits(20), DOUBLE, others=[smaller, vectors, detached])
    assert result.estimate("harm_kept", surrogate="smaller").value > 0.05
    nothing = result.estimate("harm_kept", surrogate="vectors")
    assert nothing.n == 0
    assert nothing.reason is not None
    assert says(nothing.reason, "surrogate", "gradient")
    assert result.estimate("harm_kept", surrogate="detached").n == 0
    assert [
        name for name in ("smaller", "vectors", "detached") if any(f"on {name}:" in w for w in result.findings.warnings)
    ] == [
        "vectors",
        "detached",
    ]


def test_transfer_needs_a_second_encoder() -> None:
    one, two = builtin(), builtin("digits-random")
    asked = Request(only=("transfer",))
    with refused(HoldfastError, "digits-contrastive", "transfer", "another"):
        set_encoders(asked, planned(asked), [one])
    everything = Request()
    assert "transfer" not in {each.name for each in set_encoders(everything, planned(everything), [one])}
    assert "transfer" in {each.name for each in set_encoders(everything, planned(everything), [one, two])}
    with pytest.raises(HoldfastError, match="Did you mean"):
        Transfer(surrogates=("digits-rondom",)).among([one, two])


@pytest.mark.slow
def test_more_queries_keep_more_harm_and_are_stated() -> None:
    searches = (SquareAttack(queries=10), SquareAttack(queries=200), NaturalEvolution(queries=200))
    result = QueryOnly(**{**SMALL, "attacks": (AdaptiveAttack(restarts=1),)}, searches=searches)(
        builtin(), digits(20), DOUBLE
    )
    kept = {e.conditions.get("queries"): e.value for e in result.estimates if e.quantity == "harm_kept"}
    few, many = (
        result.estimate("harm_kept", attack=f"square:queries={count}", queries=str(count)).value for count in (10, 200)
    )
    noise = result.estimate("harm_kept", attack="random noise").value
    assert max(noise, few) < many < 1.02
    assert kept.keys() == {"10", "200", "190", None}  # nine steps of nes, 21 queries each, and the start
    assert result.estimate("harm_kept", queries="190").value > noise


def test_searches_must_count_their_queries() -> None:
    with refused(HoldfastError, "searches", "attacks"):
        QueryOnly(searches=(GradientAttack(),))


@pytest.mark.parametrize("settings", [{"seen": 0}, {"steps": 0}, {"batch": 0}, {"restarts": 0}])
def test_what_learns_nothing_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(HoldfastError, match=f"{next(iter(settings))} must be positive, got 0"):
        perturbation(Linf(0.1), **settings)


def test_quick_leaves_thousands_of_queries_out_for_large_encoders() -> None:
    small, large = ({each.name for each in planned(Request(), count)} for count in (0, 10**9))
    assert small - large == {"query-only", "transfer", "universal"}
    assert [each.name for each in planned(Request(only=("query-only",)), 10**9)] == ["query-only"]
