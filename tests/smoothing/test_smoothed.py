"""Evaluations of the smoothed encoder: on linear maps whose answers are known, and on the built-in encoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

from holdfast.core.balls import BALLS, L2
from holdfast.core.divergences import Cosine, L1Distance, L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.points.points import enclosing_balls
from holdfast.core.records import Claim, Result
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import read
from holdfast.measure.observation import Joint
from holdfast.measure.population import Population
from holdfast.smoothing.copies import Copies
from holdfast.smoothing.evaluations.center_smoothing import CenterSmoothing
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval, bisector_margins
from holdfast.smoothing.index import Index, Smoothing
from holdfast.smoothing.noisy_codes import NoisyCodes
from tests.facts import refused, says
from tests.samples import builtin, digits, linear

FEW: dict[str, Any] = {"selection": 800, "copies": 1500, "samples": 5, "others": 20, "slack": 0.1}
FAST = RunSettings(batch_size=2048)
SIGMA = 0.25


def numbers(result: Result, quantity: str, **conditions: str) -> list[float]:
    (found,) = [s for s in result.series if s.quantity == quantity and conditions.items() <= s.conditions.items()]
    return list(found.values)


def plane(points: list[list[float]]) -> Images:
    return Images(torch.tensor(points)[:, None, None], [f"point {k}" for k in range(len(points))])


def test_both_evaluations_share_one_pass_and_its_attacks():
    one, other = CenterSmoothing().observation(), SmoothedRetrieval().observation()
    assert one == other
    assert isinstance(one, Joint)
    assert isinstance(one.parts[0], NoisyCodes)
    assert CenterSmoothing(sigma=0.5).observation() != other


@pytest.fixture(scope="module")
def centred() -> Result:
    return CenterSmoothing(radii=(0.1, 0.25), **FEW)(builtin("digits-robust"), digits(40), FAST)


def test_no_attack_moves_the_smoothed_code_farther_than_certified(centred: Result):
    for divergence in ("l2", "cosine"):
        for ball in ("l2:0.1", "l2:0.25"):
            case = {"divergence": divergence, "ball": ball}
            certified = numbers(centred, "certified_smoothed_displacement", **case)
            attacked = numbers(centred, "attacked_smoothed_displacement", **case)
            both = [(x, y) for x, y in zip(certified, attacked, strict=True) if x == x and y == y]
            assert len(both) >= 3, "vacuous"
            assert all(0 < y < x for x, y in both)
    assert not centred.findings.warnings


def test_under_cosine_a_displacement_is_said_as_a_similarity_too(centred: Result):
    for kind in ("certified", "attacked"):
        moved = numbers(centred, f"{kind}_smoothed_displacement", divergence="cosine", ball="l2:0.1")
        assert numbers(centred, f"{kind}_cosine_similarity", ball="l2:0.1") == pytest.approx(
            [1 - x for x in moved], nan_ok=True
        )
    assert any(0 < value < 1 for value in numbers(centred, "certified_cosine_similarity", ball="l2:0.1"))


def test_abstentions_are_apart_and_never_a_radius():
    asked = CenterSmoothing(**{**FEW, "selection": 1300, "samples": 12, "slack": 0.063}, divergences=(L2Distance(),))
    centred = asked(builtin("digits-robust"), digits(40), FAST)
    case = {"divergence": "l2", "ball": "l2:0.25", "method": "center smoothing"}
    abstained = numbers(centred, "abstentions", **case)
    certified = numbers(centred, "certified_smoothed_displacement", **case)
    assert [value != value for value in certified] == [flag == 1 for flag in abstained]
    assert 0 < sum(abstained) < len(abstained), "vacuous"
    assert centred.estimate("certified_universal_quantile", **case).n == abstained.count(0)


def test_an_estimate_says_how_sure_its_certificates_are_alone_and_together(centred: Result):
    found = centred.estimate("certified_universal_quantile", divergence="l2", ball="l2:0.25")
    assert says(found.method, "5 together", "least 0.95", "0.99", "certificate")
    assert found.claim is Claim.UPPER
    assert found.unit == "fraction of pairs"


def test_a_wider_ball_is_certified_to_move_codes_farther(centred: Result):
    narrow, wide = (
        numbers(centred, "certified_smoothed_displacement", divergence="l2", ball=f"l2:{r}") for r in ("0.1", "0.25")
    )
    assert all(x < y for x, y in zip(narrow, wide, strict=True) if x == x)
    assert [curve.quantity for curve in centred.findings.curves].count("certified_universal_quantile") == 2


def test_a_contradiction_is_said(monkeypatch: pytest.MonkeyPatch):
    """Were the certificate a tenth of what it is, attacks would refute it, and the reader would hear of it."""
    monkeypatch.setattr("holdfast.smoothing.plan.BETA", -0.99)
    found = CenterSmoothing(divergences=(L2Distance(),), **FEW)(builtin("digits-robust"), digits(40), FAST)
    assert any(warning.startswith("CONTRADICTION") for warning in found.findings.warnings)


def test_what_is_no_metric_of_points_is_refused():
    with refused(HoldfastError, "l1", "inequality", "divergence"):
        CenterSmoothing(divergences=(L1Distance(),), **FEW)(builtin(), digits(10), RunSettings())


def test_an_encoder_that_ignores_its_input_moves_nowhere():
    found = CenterSmoothing(divergences=(L2Distance(),), **FEW)(linear(torch.zeros(2, 64), (1, 8, 8)), digits(9), FAST)
    assert set(numbers(found, "certified_smoothed_displacement")) == {0.0}


def test_one_image_alone_is_certified():
    found = CenterSmoothing(divergences=(L2Distance(),), **FEW)(
        linear(torch.eye(2), (1, 1, 2)), plane([[0.5, 0.5]]), FAST
    )
    assert numbers(found, "certified_smoothed_displacement")[0] > 0
    with pytest.raises(HoldfastError, match="needs other images"):
        SmoothedRetrieval(**FEW)(linear(torch.eye(2), (1, 1, 2)), plane([[0.5, 0.5]]), FAST)


def test_votes_certify_no_more_than_the_distance_to_the_bisector_and_nearly_that():
    """For ``f(x) = x`` an image keeps the majority exactly as far as the nearest bisector hyperplane of the index."""
    images = plane([[0.2, 0.5], [0.5, 0.5], [0.95, 0.5]])
    encoder, asked = (
        linear(torch.eye(2), (1, 1, 2)),
        SmoothedRetrieval(
            divergences=(L2Distance(),), selection=800, copies=20_000, samples=3, others=2, radii=(0.02,)
        ),
    )
    result = asked(encoder, images, RunSettings(batch_size=4096))
    population = Population(encoder, images, RunSettings())
    index = population.learned(asked.smoothing.index)["codes"][population.order_of].double()
    certified = dict(zip(result.findings.ids, numbers(result, "certified_retrieval_radius"), strict=True))
    for row, name in enumerate(images.ids):
        others = [k for k in range(3) if k != row]
        point = images.pixels([row]).flatten(1).double()[0]
        near, far = sorted(others, key=lambda k: float((point - index[k]).norm()))
        gap = index[far] - index[near]
        true = float((point - (index[far] + index[near]) / 2) @ -gap / gap.norm())
        assert certified[name] <= true
        assert certified[name] > 0.9 * true - 0.01
    assert max(certified.values()) > 0.1, "vacuous"


def slow_margins(centre: Tensor, entries: Tensor) -> tuple[list[float], float]:
    def margin(a: Tensor, b: Tensor) -> float:
        return float(((a + b) / 2 - centre) @ (b - a) / (b - a).norm())

    near = min(range(1, len(entries)), key=lambda k: float((centre - entries[k]).norm()))
    rest = [margin(entries[near], entries[k]) for k in range(1, len(entries)) if k != near]
    return [margin(entries[0], other) for other in entries[1:]], min(rest)


def test_margins_are_distances_to_bisector_hyperplanes():
    entries = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centre = entries[0] + 0.1
    relative = entries - entries[0]
    index = Index(relative, entries[0], relative.square().sum(1) / 2)
    own, other = bisector_margins(centre, index)
    slow_own, slow_other = slow_margins(centre, entries)
    assert own.tolist() == pytest.approx(slow_own)
    assert float(other) == pytest.approx(slow_other)


def test_center_smoothing_certifies_retrieval_where_margins_are_wide():
    """Votes certify more, but what center smoothing certifies holds too: points far apart, little noise."""
    images = plane([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.9, 0.0]])
    asked = SmoothedRetrieval(sigma=0.02, radii=(0.005,), divergences=(L2Distance(),), **FEW)
    result = asked(linear(torch.eye(2), (1, 1, 2)), images, FAST)
    kept = {m: numbers(result, "certified_smoothed_nearest_neighbour", method=m) for m in ("votes", "center smoothing")}
    risk = {m: numbers(result, "certified_smoothed_breakaway", method=m) for m in ("votes", "center smoothing")}
    assert sum(kept["center smoothing"]) >= 2, "vacuous"
    assert all(x >= y for x, y in zip(kept["votes"], kept["center smoothing"], strict=True))
    assert all(x <= y for x, y in zip(risk["votes"], risk["center smoothing"], strict=True))


def test_copies_of_an_image_are_not_told_from_it():
    images = plane([[0.1, 0.1], [0.1, 0.1], [0.9, 0.9], [0.9, 0.1]])
    asked = SmoothedRetrieval(sigma=0.02, radii=(0.005,), divergences=(L2Distance(),), **FEW)
    result = asked(linear(torch.eye(2), (1, 1, 2)), images, FAST)
    assert numbers(result, "certified_smoothed_breakaway", method="votes") == [0.0] * 4
    alike = Images(torch.full((3, 1, 1, 2), 0.5))
    nothing = asked(linear(torch.eye(2), (1, 1, 2)), alike, FAST)
    assert all(value != value for value in numbers(nothing, "certified_smoothed_breakaway", method="votes"))


def test_copies_alone_have_no_retrieval():
    """Nothing is certified of an image whose others are all copies of it, neither one by one nor in a curve."""
    asked = SmoothedRetrieval(sigma=0.02, radii=(0.005,), divergences=(L2Distance(),), **FEW)
    alike = Images(torch.full((3, 1, 1, 2), 0.5))
    result = asked(linear(torch.eye(2), (1, 1, 2)), alike, FAST)
    for quantity in ("certified_retrieval_radius", "smoothed_retrieval_agrees", "attacked_smoothed_nearest_neighbour"):
        assert all(value != value for value in numbers(result, quantity)), quantity
    assert not any(share > 0 for curve in result.findings.curves for share in curve.y)


@pytest.mark.parametrize(("divergence", "bias"), [(Cosine(), -1.0), (L2Distance(), -9.0)])
def test_nearest_to_nobody_or_to_all_alike_is_no_retrieval(divergence: Cosine | L2Distance, bias: float):
    """Codes of most copies are zero: under cosine nobody is nearest, under l2 all others are as near."""
    layer = nn.Linear(2, 2)
    layer.weight.data, layer.bias.data = torch.eye(2), torch.full((2,), bias)
    silent = nn.Sequential(nn.Flatten(), layer, nn.ReLU())
    asked = SmoothedRetrieval(sigma=0.25, radii=(0.1,), divergences=(divergence,), **FEW)
    images = plane([[0.2, 0.3], [0.3, 0.2], [0.4, 0.1], [0.1, 0.4]])
    result = asked(Encoder(silent, "silent", Domain((1, 1, 2))), images, FAST)
    assert numbers(result, "certified_retrieval_radius") == [0.0] * 4
    assert numbers(result, "certified_retrieval", method="votes") == [0.0] * 4
    assert numbers(result, "smoothed_retrieval_agrees") == [0.0] * 4


def test_points_that_are_not_finite_have_no_neighbour():
    entries = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    index = Index(entries, torch.zeros(2), entries.square().sum(1) / 2)
    points = torch.tensor([[0.9, 0.0], [torch.inf, 0.0], [torch.nan, 0.0], [0.5, 0.5]])
    assert index.neighbours(points).tolist() == [1, 0, 0, 0]
    assert not index.nearer(points[1:3]).any()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_noise_is_normal_in_half_precision_too(precision: str):
    """What is rounded is the noisy image, once: of noise and image rounded apart, sums prefer even digits."""
    population = Population(linear(torch.eye(64), (1, 8, 8)), digits(1), RunSettings(precision=precision))
    copies = Copies.of(population, 0, SIGMA)
    seen = copies.reduced("centre", 50, lambda codes: {"codes": codes})["codes"]
    noise = copies.noise.fork("centre").numbered(torch.arange(50)).gaussian((1, 8, 8))
    noisy = population.pixels([0]).float() + SIGMA * noise
    assert torch.equal(seen.float(), noisy.to(population.run.dtype).float().flatten(1))


def test_images_are_told_from_those_of_the_bank_if_there_is_one():
    measured, bank = plane([[0.5, 0.5]]), plane([[0.45, 0.5], [0.9, 0.9]])
    asked = SmoothedRetrieval(sigma=0.02, radii=(0.005,), divergences=(L2Distance(), Cosine()), **FEW)
    result = asked(linear(torch.eye(2), (1, 1, 2)), measured, FAST, bank)
    assert result.bank is not None
    far = asked(linear(torch.eye(2), (1, 1, 2)), measured, FAST, plane([[0.0, 0.5], [0.9, 0.9]]))
    near, wide = (r.estimate("average_certified_retrieval_radius", divergence="l2").value for r in (result, far))
    assert near > 0 < wide
    kept = [numbers(r, "certified_smoothed_nearest_neighbour", divergence="l2", method="votes") for r in (result, far)]
    assert kept == [[1.0], [1.0]]
    closest = plane([[0.501, 0.5], [0.9, 0.9]])
    lost = asked(linear(torch.eye(2), (1, 1, 2)), measured, FAST, closest)
    assert numbers(lost, "certified_smoothed_nearest_neighbour", divergence="l2", method="votes") == [0.0]


def test_half_of_the_certify_draws_do_not_decide_what_is_certified():
    """A certificate at fewer copies is smaller, not other: the draws are numbered, and the first ones are the same."""
    asked = SmoothedRetrieval(divergences=(L2Distance(),), **FEW)
    fewer, more = (
        numbers(replace(asked, copies=n)(builtin("digits-robust"), digits(30), FAST), "certified_retrieval_radius")
        for n in (300, 2000)
    )
    assert sum(more) > sum(fewer) > 0


def test_all_others_together_are_certified_wrongly_with_chance_alpha_at_most():
    """Where each is nearer with just the chance that the radius needs, and none of it is proved yet."""
    asked = SmoothedRetrieval(radii=(0.125,), divergences=(L2Distance(),), alpha=0.01, **FEW)
    population = Population(builtin("digits-robust"), digits(21), FAST)
    rows = [0]
    observed = asked.observation().observe(population, rows)
    chance, count = float(torch.special.ndtr(torch.tensor(0.125 / SIGMA))), torch.arange(FEW["copies"] + 1)

    def certified(votes: int) -> bool:
        votes_of_all = torch.full_like(observed["0.0.nearer"], votes)
        shares = asked.conclude(population, rows, {**observed, "0.0.nearer": votes_of_all})
        found = [s for s in shares.series if s.quantity == "certified_smoothed_breakaway"]
        return next(s.values for s in found if s.conditions["method"] == "votes") == (0.0,)

    least = next(votes for votes in count[int(chance * FEW["copies"]) :].tolist() if certified(votes))
    wrong = 1 - (1 - float(binom.sf(least - 1, FEW["copies"], chance))) ** FEW["others"]
    assert asked.alpha / 2 < wrong <= asked.alpha, "no more than allowed, and not much less"


def test_the_ball_around_the_centre_is_at_most_twice_the_smallest():
    """What center smoothing rests on: no ball that holds half of the samples is less than half as wide."""
    population = Population(builtin(), digits(1), RunSettings())
    asked = NoisyCodes(Smoothing(SIGMA, 400, 100, 1, 1), (L2Distance(),), ())
    seen = asked.observe(population, [0])
    samples = Copies.of(population, 0, SIGMA).reduced("centre", 400, lambda codes: {"codes": codes})["codes"]
    inside = (samples - seen["0.centre"][0]).norm(dim=1) <= seen["0.radius"][0]
    assert int(inside.sum()) == 200
    assert float(seen["0.radius"]) <= 2 * float(enclosing_balls(samples[inside][None]).radii)


def test_an_image_is_kept_only_where_it_is_carried_past_no_other():
    """One other image is too near to be certified against, two are far: it is not kept, and its risk is a third."""
    images = plane([[0.5, 0.5], [0.52, 0.5], [0.95, 0.95], [0.05, 0.95]])
    asked = SmoothedRetrieval(sigma=0.02, radii=(0.005,), divergences=(L2Distance(),), **FEW)
    result = asked(linear(torch.eye(2), (1, 1, 2)), images, FAST)
    for method in ("votes", "center smoothing"):
        risk = numbers(result, "certified_smoothed_breakaway", method=method)
        kept = numbers(result, "certified_smoothed_nearest_neighbour", method=method)
        assert kept == [float(share == 0) for share in risk]
        assert any(share == pytest.approx(1 / 3) for share in risk), "vacuous: all of them are passed, or none"


@pytest.mark.parametrize("radius", [8 / 255, 0.25, 1 / 3, 0.1])
def test_the_ball_of_a_number_is_the_ball_that_was_asked_for(radius: float):
    """Gates look numbers up by it: a radius cut to six digits would be another one."""
    case = SmoothedRetrieval(radii=(radius,), **FEW).conditions(radius, L2Distance())
    assert read(case["ball"], BALLS, "ball") == L2(radius)
