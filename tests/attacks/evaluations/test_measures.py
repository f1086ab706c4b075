"""The measures on encoders where every number is known, and what they say when nothing can be measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import Case, NoiseDisplacements
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.evaluations.breakaway import Breakaway, of_clusters
from holdfast.attacks.evaluations.displacement import Displacement, effective_rank
from holdfast.attacks.evaluations.harm_kept import Harm, numbers_of
from holdfast.attacks.evaluations.impersonation import Impersonation
from holdfast.attacks.evaluations.masking import Masking, masking_warnings, verdict
from holdfast.attacks.evaluations.overlap import Overlap
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import L2, Linf
from holdfast.core.divergences import Cosine, L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim, Result, Series
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.statistics.intervals import share_interval
from holdfast.core.statistics.summaries import series_of, summarise
from holdfast.measure.population import Population
from tests.facts import says
from tests.marks import rest_slow
from tests.samples import builtin, digits, linear

BALL = Linf(0.1)
ATTACK = AdaptiveAttack(steps=20)
ONE: dict[str, Any] = {"balls": (BALL,), "attacks": (ATTACK,), "divergences": (L2Distance(),)}


def pixel(values: list[float]) -> Images:
    """Images of one pixel each."""
    return Images(torch.tensor(values).reshape(-1, 1, 1, 1), ids=[f"v{value}" for value in values])


def identity() -> Encoder:
    return Encoder(nn.Flatten().eval(), "identity", Domain((1, 1, 1)))


def series(result: Result, quantity: str) -> list[float]:
    return list(next(s.values for s in result.series if s.quantity == quantity))


def test_displacement_of_the_identity_is_the_radius() -> None:
    result = Displacement(**ONE)(identity(), pixel([0.2, 0.25, 0.5, 0.9]))
    assert series(result, "displacement") == pytest.approx([0.1] * 4, abs=1e-6)
    # Of the six pairs, only 0.2 - 0.25 is as close as 0.1.
    assert series(result, "universal_quantile") == pytest.approx([1 / 6] * 4)
    assert result.estimate("universal_quantile").value == pytest.approx(1 / 6)
    assert result.estimate("universal_quantile").claim is Claim.LOWER


def test_breakaway_of_the_identity_is_counted_by_hand() -> None:
    # 0.2 can only profit by moving up to 0.3, past 0.25 (and exactly half way is not closer); 0.5 and 0.9 are out of reach.
    result = Breakaway(**ONE, pairwise=ATTACK)(identity(), pixel([0.2, 0.25, 0.5, 0.9]))
    assert series(result, "breakaway_share")[2:] == [0, 0]
    assert result.estimate("nearest_neighbour_accuracy", attack=str(ATTACK) + " at retrieval").value == 0.5
    assert result.estimate("breakaway_risk").value <= 2 / 12


@pytest.mark.parametrize(("gap", "kept", "count"), [(0.03, 0.0, 20.0), (0.3, 1.0, 10.0)])
def test_images_lost_together_count_for_fewer(gap: float, kept: float, count: float) -> None:
    """Ten pairs: an attack that carries one image past its twin carries the twin past it. Where none is, one is expected."""
    pairs = [[place, place + gap] for place in np.arange(10).tolist()]
    images = Images(torch.tensor(pairs).reshape(-1, 1, 1, 1) / 10, ids=[str(k) for k in range(20)])
    result = Breakaway(**{**ONE, "balls": (Linf(0.01),)}, pairwise=ATTACK, rivals=1)(identity(), images)
    found = result.estimate("nearest_neighbour_accuracy", attack=str(ATTACK) + " at retrieval")
    assert (found.value, found.n) == (kept, 20)
    assert (found.low, found.high) == share_interval(kept * count, count)
    assert "images lost together" in found.method
    nobody = result.estimate("nearest_neighbour_accuracy", attack=str(ATTACK))
    assert "images lost together" in nobody.method
    assert nobody.high - nobody.low >= np.diff(share_interval(nobody.value * 20, 20))[0] - 1e-12
    assert (found.statistic, nobody.statistic) == ("whole", "mean"), (
        "attacks that aim at nobody are compared image by image"
    )


def test_the_design_effect_of_pairs_by_hand() -> None:
    """Half of 40 images are lost, in pairs: size 2, so the variance is that of 40 / (1 + 0.5 * (2 - 1)) images."""
    share = Series(quantity="kept", values=(0.0, 1.0) * 20, unit="yes or no", claim=Claim.ESTIMATE, of="kept")
    found = of_clusters(summarise(share, "share", "higher"), np.full(10, 2.0))
    assert (found.low, found.high) == pytest.approx(share_interval(40 / 3, 80 / 3))
    alone = of_clusters(summarise(share, "share", "higher"), np.ones(20))
    assert found.low < alone.low < summarise(share, "share", "higher").low


def test_impersonation_of_the_identity_is_counted_by_hand() -> None:
    result = Impersonation(**ONE)(identity(), pixel([0.2, 0.9]))
    # The distance 0.7 shrinks by 0.1 and the target is still farther than the image itself.
    assert series(result, "relative_quantile") == pytest.approx([6 / 7], abs=1e-5)
    assert result.estimate("impersonation_rate").value == 0
    near = Impersonation(**ONE)(identity(), pixel([0.2, 0.25]))
    assert series(near, "relative_quantile") == pytest.approx([0], abs=0.03)
    assert near.estimate("impersonation_rate").value == 1


def test_overlap_of_the_identity_is_counted_by_hand() -> None:
    far = Overlap(**ONE)(identity(), pixel([0.2, 0.9]))
    # d(x, impostor) = 0.6, d(x, itself moved) = 0.1: margin (0.6 - 0.1) / 0.7.
    assert series(far, "adversarial_margin") == pytest.approx([5 / 7], abs=1e-5)
    assert far.estimate("overlap_risk").value == 0
    near = Overlap(**ONE)(identity(), pixel([0.2, 0.35]))
    # d(x, impostor) = 0.05, d(x, itself moved) = 0.1.
    assert series(near, "adversarial_margin") == pytest.approx([-1 / 3], abs=1e-4)
    assert near.estimate("overlap_risk").value == 1


def test_overlap_counts_who_passes_strictly_each_way_by_hand() -> None:
    """Codes 0.2 and 0.6; the first moves to ``ahead``, the second to ``back``, and each way is judged from its own side."""
    evaluation = Overlap(**ONE, samples=2)
    population = Population(identity(), pixel([0.25, 0.75]), RunSettings(precision="float64"))
    row = 0 if float(population.codes[0, 0]) == 0.25 else 1
    # Equally far from the first, by 0.125; from the second, itself moved by 0.375 and the impostor by 0.375, too.
    level = {"0.0.ahead": torch.tensor([[0.375]]), "0.0.back": torch.tensor([[0.375]])}
    # From the first: itself 0.25, the impostor 0.125. From the second: itself 0.375, the impostor 0.25.
    passing = {"0.0.ahead": torch.tensor([[0.5]]), "0.0.back": torch.tensor([[0.375]])}
    # From the first: itself 0.125, the impostor 0.25. From the second: itself 0.25, the impostor 0.375.
    short = {"0.0.ahead": torch.tensor([[0.375]]), "0.0.back": torch.tensor([[0.5]])}
    for observed, overlaps, margin in ((level, 0, 0), (passing, 1, -0.25), (short, 0, 0.25)):
        found = {one.quantity: one.values for one in evaluation.conclude(population, [row], observed).series}
        assert found["overlaps"] == (overlaps,)
        assert found["overlaps_in_reverse"] == (overlaps,)
        assert found["adversarial_margin"] == pytest.approx((margin,))


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (0 * x.flatten(1)[:, :3]) + torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)


@pytest.mark.parametrize(
    "evaluation", rest_slow([Displacement(**ONE), Breakaway(**ONE), Impersonation(**ONE), Overlap(**ONE)])
)
def test_a_collapsed_encoder_is_flagged(evaluation: Displacement | Breakaway | Impersonation | Overlap) -> None:
    result = evaluation(Encoder(Constant().eval(), "constant", Domain((1, 8, 8))), digits(10))
    assert result.findings.collapsed
    healthy = evaluation(builtin(), digits(10))
    assert not healthy.findings.warnings, "vacuous: everything is flagged"


def test_a_collapsed_encoder_has_no_relative_numbers() -> None:
    encoder = Encoder(Constant().eval(), "constant", Domain((1, 8, 8)))
    quantile = Impersonation(**ONE)(encoder, digits(10)).estimate("relative_quantile")
    margin = Overlap(**ONE)(encoder, digits(10)).estimate("adversarial_margin")
    assert isnan(quantile.value)
    assert isnan(margin.value)
    assert quantile.reason
    assert "undefined" in quantile.reason


def test_duplicated_images_are_reported_and_left_out_of_ratios() -> None:
    base = digits(10)
    pixels = torch.cat([base.pixels(range(10)), base.pixels(range(3))])
    twins = Images(pixels, ids=[str(k) for k in range(13)])
    result = Displacement(**ONE)(builtin(), twins)
    assert any(says(warning, "3 of 13", "exact", "copies") for warning in result.findings.warnings)
    pair = Images(base.pixels([0, 0]), ids=["a", "b"])
    quantile = Impersonation(**ONE)(builtin(), pair).estimate("relative_quantile")
    assert isnan(quantile.value)
    assert quantile.n == 0


def test_zero_codes_are_undefined_under_cosine() -> None:
    class Zero(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            # The darkest image has a zero code.
            return torch.relu(x.flatten(1) - 0.3)

    images = pixel([0.1, 0.5, 0.7, 0.9])
    settings = {**ONE, "divergences": (Cosine(),), "balls": (Linf(0.01),)}
    result = Displacement(**settings)(Encoder(Zero().eval(), "zero", Domain((1, 1, 1))), images)
    values = series(result, "universal_quantile")
    assert isnan(values[0])
    assert not any(isnan(value) for value in values[1:])
    assert "1 of 4 samples undefined" in (result.estimate("universal_quantile").reason or "")


@pytest.mark.parametrize("evaluation", [Impersonation(**ONE), Overlap(**ONE), Breakaway(**ONE)])
def test_a_single_image_is_refused_with_advice(evaluation: Impersonation | Overlap | Breakaway) -> None:
    with pytest.raises(HoldfastError, match="only one image"):
        evaluation(builtin(), digits(1))


def test_a_single_image_has_a_displacement_but_no_quantile() -> None:
    result = Displacement(**ONE)(builtin(), digits(1))
    assert series(result, "displacement")[0] > 0
    assert isnan(result.estimate("universal_quantile").value)


def test_effective_rank_of_known_spectra() -> None:
    line = torch.outer(torch.linspace(-1, 1, 50), torch.randn(6))
    assert effective_rank(line) == pytest.approx(1, abs=1e-6)
    assert effective_rank(torch.cat([torch.eye(8), -torch.eye(8)])) == pytest.approx(8, rel=1e-6)
    assert effective_rank(torch.full((9, 4), 3.0)) == 0


def test_stronger_attacks_find_more_than_the_published_one() -> None:
    result = Displacement(balls=(Linf(0.1),), samples=60)(builtin(), digits(60))
    published = result.estimate("universal_quantile", attack="u-pgd", divergence="l2")
    adaptive = result.estimate("universal_quantile", attack="adaptive", divergence="l2")
    assert adaptive.value > published.value


def masked(strength: float) -> Encoder:
    """An encoder whose gradient vanishes although its codes move: rounding in front of a smooth one."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = builtin().module

        def forward(self, x: Tensor) -> Tensor:
            rounded = (x * 16).round() / 16
            return self.inner(rounded + (x - rounded) * strength)

    return Encoder(Masked().eval(), "masked", Domain((1, 8, 8)))


def test_masked_gradients_are_caught() -> None:
    evaluation = Masking(attacks=(AdaptiveAttack(steps=15, restarts=2),), blind=SquareAttack(queries=150), samples=20)
    hidden = evaluation(masked(1e-9), digits(20))
    assert any("GRADIENT MASKING" in warning for warning in hidden.findings.warnings)
    assert any(verdict.status == "refuted" for verdict in hidden.findings.verdicts)
    honest = evaluation(builtin("digits-robust"), digits(20))
    assert not honest.findings.warnings
    assert not any(verdict.status == "refuted" for verdict in honest.findings.verdicts)


def test_a_check_without_a_violation_says_so_and_proves_nothing() -> None:
    values = torch.tensor([0.0] * 200)
    case = Case(Linf(0.1), GradientAttack(steps=3), L2Distance())
    flags = [
        series_of("score_only_wins", case.conditions, v, "yes or no", Claim.ESTIMATE, "x", "y")
        for v in (values, values + 1)
    ]
    clean, broken = (summarise(flag, "share", "lower") for flag in flags)
    answer = verdict("score_only_wins", [clean])
    assert (answer.status, answer.reason) == ("no violation found", "0 of 200 images in each ball")
    assert verdict("score_only_wins", [clean, broken]).status == "refuted"
    assert verdict("wider_ball_moves_less", [clean]).status == "unknown"


def moved_by(population: Population, searches: Sequence[Mapping[str, Sequence[float]]]) -> Observed:
    """What ``masking`` observes in several balls, of images that searches move so far."""
    observed: Observed = {}
    for ball, moves in enumerate(searches):
        sighted, blind = population.codes.clone(), population.codes.clone()
        sighted[:, 0] += torch.tensor(moves["sighted"])
        blind[:, 0] += torch.tensor(moves["blind"])
        observed |= {f"{ball}.0.codes": population.codes, f"{ball}.1.codes": sighted}  # the last is the strongest
        observed[f"{len(searches) + ball}.0.codes"] = blind
        for name in ("noise", "slope"):
            observed[f"{2 * len(searches) + ball}.{name}"] = torch.tensor(moves[name])
    return observed


def test_each_check_of_gradients_by_hand() -> None:
    """Five images whose displacements by gradients, by scores and by noise, and whose slopes at the noise are given."""
    images, balls = digits(5), (Linf(0.1), Linf(0.2))
    population = Population(builtin(), images, RunSettings())
    narrow = {
        "sighted": [1.0, 1.0, 1.0, torch.inf, 1.0],
        "blind": [1.04, 1.06, 0.5, 1.0, 1.0],
        "noise": [1.9, 2.1, 1.0, 1.0, 1.0],
        "slope": [1.0, 1.0, 0.0, 1.0, torch.nan],
    }
    wide = {**narrow, "sighted": [0.96, 0.94, 2.0, 2.0, 1.0]}
    observed = moved_by(population, (narrow, wide))
    found = Masking(balls=balls, samples=5).conclude(population, range(5), observed)
    flags = {(one.quantity, one.conditions["ball"]): np.array(one.values) for one in found.series}
    expected = {
        ("score_only_wins", "linf:0.1"): [0, 1, 0, np.nan, 0],  # by more than 5%
        ("noise_beats_gradient", "linf:0.1"): [0, 1, 1, 0, 0],  # by more than the slope twice
        ("zero_gradient_share", "linf:0.1"): [0, 0, 1, 0, 1],
        ("wider_ball_moves_less", "linf:0.2"): [0, 1, 0, np.nan, 0],
    }
    for key, values in expected.items():
        assert flags[key].tolist() == pytest.approx(values, nan_ok=True), key
    assert ("wider_ball_moves_less", "linf:0.1") not in flags


def test_a_ball_around_several_others_is_compared_with_the_one_that_moved_most() -> None:
    """One number for each ball: two of one name would be two meanings of one label."""
    balls = (Linf(0.1), Linf(0.2), Linf(0.3))
    sighted = ([2.0, 1.0, 1.0], [1.0, 1.5, 1.0], [1.5, 1.2, 1.0])
    population = Population(builtin(), digits(3), RunSettings())
    others = dict.fromkeys(("blind", "noise", "slope"), [1.0] * 3)
    observed = moved_by(population, [{"sighted": moved, **others} for moved in sighted])
    found = Masking(balls=balls, samples=3).conclude(population, range(3), observed)
    fell = [(each.conditions["ball"], each.values) for each in found.series if each.quantity == "wider_ball_moves_less"]
    assert fell == [("linf:0.2", (1, 0, 0)), ("linf:0.3", (1, 1, 0))]


@pytest.mark.parametrize("ball", [Linf(0.05), L2(0.3)], ids=str)
def test_the_slope_promises_what_noise_achieves_on_a_linear_encoder(ball: Linf | L2) -> None:
    """Of one feature ``w.x`` the slope at any point is the radius times the dual norm of w: the largest displacement."""
    weight = torch.linspace(-1, 2, 64)[None]
    population = Population(linear(weight, (1, 8, 8)), digits(4), RunSettings())
    probes = NoiseDisplacements(ball, L2Distance(), 4)
    observed = probes.observe(population, range(4))
    promised = ball.radius * float(ball.dual_norm(weight.reshape(1, 1, 8, 8)))
    assert observed["slope"].tolist() == pytest.approx([promised] * 4, rel=1e-4)
    assert (observed["noise"] <= observed["slope"]).all()


def test_vanished_gradients_are_counted() -> None:
    class Dead(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x.flatten(1).round(), 0 * x.flatten(1)[:, :1]], dim=1)

    result = Masking(samples=10, blind=SquareAttack(queries=20))(
        Encoder(Dead().eval(), "dead", Domain((1, 8, 8))), digits(10)
    )
    assert result.estimate("zero_gradient_share", ball="linf:0.1").value == 1


def test_curves_need_two_radii() -> None:
    attack = GradientAttack(steps=3)
    two = Displacement(balls=(Linf(0.1), Linf(0.4)), attacks=(attack,), divergences=(L2Distance(),))(
        builtin(), digits(20)
    )
    (curve,) = two.findings.curves
    assert curve.x == (0.1, 0.4)
    assert curve.y[0] < curve.y[1]
    assert not Displacement(**ONE)(builtin(), digits(20)).findings.curves


def test_pictures_show_the_extremes() -> None:
    result = Displacement(**ONE)(builtin(), digits(20))
    values = dict(zip(result.findings.ids, series(result, "universal_quantile"), strict=True))
    shown = [picture.caption.split(":")[0] for picture in result.findings.pictures]
    assert shown[0] == max(values, key=lambda name: values[name])
    assert shown[-1] == min(values, key=lambda name: values[name])
    assert all(set(picture.labels) == {"clean", "attacked", "change"} for picture in result.findings.pictures)


def test_precision_and_seed_are_settings_and_batch_size_is_not() -> None:
    evaluation = Displacement(**ONE)
    result = evaluation(builtin(), digits(10), RunSettings(seed=3, precision="float64", batch_size=4))
    assert result.settings["seed"] == 3
    assert result.settings["precision"] == "float64"
    assert "batch_size" not in result.settings


def violated(count: int, n: int) -> list[Any]:
    flags = Series(
        quantity="score_only_wins",
        conditions={"ball": "linf:0.1"},
        values=(1.0,) * count + (0.0,) * (n - count),
        unit="yes or no",
        claim=Claim.ESTIMATE,
        of="share of images",
    )
    return [summarise(flags, "share", "lower")]


@pytest.mark.parametrize(("count", "n", "refuted"), [(3, 40, False), (4, 50, False), (8, 50, True), (60, 1000, False)])
def test_masking_is_refuted_where_chance_cannot_explain_it(count: int, n: int, refuted: bool) -> None:
    """The whole interval, not the share alone, must lie above 5%."""
    found = violated(count, n)
    assert (verdict("score_only_wins", found).status == "refuted") == refuted
    assert bool(masking_warnings(found)) == refuted


@pytest.mark.slow
def test_of_twenty_copies_of_one_image_nothing_relative_is_defined() -> None:
    copies = Images(digits(1).pixels([0] * 20), ids=[str(k) for k in range(20)])
    one: dict[str, Any] = {"balls": (Linf(0.2),), "attacks": (ATTACK,), "divergences": (L2Distance(),)}
    results = [
        Breakaway(**one, pairwise=ATTACK)(builtin(), copies),
        *(kind(**one)(builtin(), copies) for kind in (Displacement, Overlap, Impersonation)),
    ]
    estimates = [one for result in results for one in result.estimates if one.quantity != "effective_rank"]
    assert len(estimates) == 10
    for estimate in estimates:
        assert isnan(estimate.value), estimate.quantity
        assert (estimate.n, bool(estimate.reason)) == (0, True)
    assert says(str(results[0].estimate("breakaway_risk").reason), "copies")
    assert says(str(results[1].estimate("universal_quantile").reason), "different")


def test_copies_of_images_are_no_scale_of_displacement() -> None:
    base = digits(10)
    twins = Images(base.pixels([*range(10), *([0] * 30)]), [*base.ids, *(f"copy{k}" for k in range(30))])
    settings: dict[str, Any] = {"balls": (Linf(0.2),), "attacks": (ATTACK,), "divergences": (L2Distance(),)}
    plain, copied = (Displacement(**settings)(builtin(), images).series[0].values for images in (base, twins))
    assert min(plain) > 0, "vacuous"
    assert copied[1:10] == plain[1:10]


def test_copies_of_images_do_not_dilute_breakaway() -> None:
    base, copied = digits(30), [*range(30), *range(0, 30, 2), *range(0, 30, 2)]
    twins = Images(base.pixels(copied), [f"{base.ids[row]}-{k}" for k, row in enumerate(copied)])
    alone = Images(base.pixels(range(30)), twins.ids[:30])
    ball: dict[str, Any] = {
        "balls": (Linf(0.2),),
        "attacks": (ATTACK,),
        "divergences": (L2Distance(),),
        "pairwise": ATTACK,
    }
    plain, doubled = (Breakaway(**ball)(builtin(), images) for images in (alone, twins))
    for quantity in ("breakaway_risk", "nearest_neighbour_accuracy"):
        here, there = (result.estimate(quantity, attack=str(ATTACK)) for result in (plain, doubled))
        assert there.n == here.n == 30
        assert there.value == pytest.approx(here.value, abs=0.05)  # other copies have other noise
    assert plain.estimate("breakaway_risk").value > 0.1, "vacuous"


def test_one_feature_under_cosine_is_warned_of() -> None:
    images = pixel([0.2, 0.25, 0.5, 0.9])
    settings = {**ONE, "divergences": (Cosine(),)}
    assert any("one feature" in warning for warning in Displacement(**settings)(identity(), images).findings.warnings)
    assert not any("one feature" in warning for warning in Displacement(**ONE)(identity(), images).findings.warnings)


def test_a_quantile_of_zero_has_an_upper_end() -> None:
    """No pair of 30 images is as close as the attack moves one: of other images, some may be."""
    result = Displacement(**{**ONE, "balls": (Linf(1e-4),)})(builtin(), digits(30))
    quantile = result.estimate("universal_quantile")
    assert (quantile.low, quantile.value) == (0, 0)
    assert 2 / (30 * 29) < quantile.high < 0.3
    assert "for the 30 reference images" in quantile.method


def test_a_risk_of_zero_allows_for_others_to_be_passed() -> None:
    result = Breakaway(**{**ONE, "balls": (Linf(1e-4),)}, pairwise=ATTACK)(builtin(), digits(30))
    risk = result.estimate("breakaway_risk")
    assert (risk.low, risk.value) == (0, 0)
    assert 1 - 0.025 ** (1 / 30) < risk.high < 2.1 * (1 - 0.025 ** (1 / 30))


def test_no_image_is_in_two_pairs() -> None:
    population = Population(builtin(), digits(31), RunSettings())
    rows = population.disjoint_pairs(1000)
    partners = population.partners[rows].tolist()
    assert len(rows) == 15
    assert len({*rows, *partners}) == 30
    assert population.disjoint_pairs(4) == sorted(population.disjoint_pairs(4))


def test_the_pairs_of_the_pairwise_risk_share_no_image() -> None:
    """Where every image is attacked and every image a target, neighbouring pairs err alike."""
    result = Breakaway(**ONE, pairwise=ATTACK)(builtin(), digits(30))
    crossed = next(series for series in result.series if series.quantity == "crossed_to_a_random_image")
    attacked = [row for row, value in enumerate(crossed.values) if value == value]
    population = Population(builtin(), digits(30), RunSettings())
    assert attacked == population.disjoint_pairs(30)
    assert result.estimate("pairwise_breakaway_risk").n == 15
    assert says(crossed.reasons[int(population.partners[attacked[0]])], "pairs", "share")


@pytest.mark.parametrize("bank", [False, True])
def test_an_image_carried_past_all_others_has_broken_away_from_all_of_them(bank: bool) -> None:
    """A share of one, whether those it can be carried past are the measured images or those of a bank."""
    clean, others = pixel([0.5, 0.2, 0.1, 0.0]), pixel([0.3, 0.2, 0.1, 0.0])
    held = Population(identity(), others, RunSettings()) if bank else None
    population = Population(identity(), clean, RunSettings(), bank=held)
    evaluation = Breakaway(**ONE)
    observed = evaluation.observation().observe(population, range(4))
    observed["0.0.codes"] = torch.tensor([[-9.0], [0.2], [0.1], [0.0]])
    findings = evaluation.conclude(population, range(4), observed)
    shares = next(s.values for s in findings.series if s.quantity == "breakaway_share")
    assert shares[0] == 1.0
    assert next(e.value for e in findings.estimates if e.quantity == "breakaway_risk") == sum(shares) / 4


def test_a_risk_of_no_image_has_no_interval() -> None:
    nothing = torch.full((5,), torch.nan, dtype=torch.float64)
    case = Case(Linf(0.1), GradientAttack(steps=1), L2Distance())
    _, estimates = numbers_of(Harm(case, nothing, nothing, nothing, nothing, 5))
    (risk,) = [one for one in estimates if one.quantity == "breakaway_risk"]
    assert risk.n == 0
    assert isnan(risk.value)
    assert isnan(risk.low)
    assert isnan(risk.high)
