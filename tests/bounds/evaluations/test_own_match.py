"""Certified attack radius: the exact radius lies between proof and attack, for every encoder, and lies are found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isnan

import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.attacks.presets import NAMED
from holdfast.bounds.evaluations.certified_attack_radius import ATTACKED, CERTIFIED, CertifiedAttackRadius
from holdfast.bounds.methods.base import Crown, Interval, Method
from holdfast.bounds.own_match import FIRST, OwnMatch, own_match
from holdfast.bounds.pair_bounds import Certification
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.divergences import Cosine, Divergence, L1Distance, L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim, Result
from holdfast.core.run_settings import RunSettings
from holdfast.encoders.builtin import names
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.population import Population
from holdfast.run.catalog import HEAVY, suite_settings
from holdfast.run.request import build
from tests.bounds.evaluations.known import Boast, linear_case, sorting
from tests.marks import rest_slow
from tests.samples import builtin, digits

FAST = AdaptiveAttack(restarts=1, steps=5)
SMALL = CertifiedAttackRadius(samples=4, attack=FAST)
both = pytest.mark.parametrize("divergence", [L2Distance(), Cosine()], ids=str)


def radii(result: Result) -> tuple[tuple[float, ...], tuple[float, ...]]:
    proved, attacked = result.series
    assert (proved.quantity, attacked.quantity) == (CERTIFIED, ATTACKED)
    assert (proved.claim, attacked.claim) == (Claim.LOWER, Claim.UPPER)
    return proved.values, attacked.values


def exact_linear(encoder: Encoder, images: Images, divergence: Divergence, ball: Ball) -> torch.Tensor:
    """The radius of each image of a linear encoder, in the middle of the range: the nearest of all bisectors."""
    population = Population(encoder, images, RunSettings(precision="float64"))
    weight = linear_case()[2].double()
    codes, n = population.codes, len(images)
    found = torch.full((n, n), torch.inf, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            a, b = codes[i], codes[j]
            if isinstance(divergence, Cosine):
                normal, offset = a / a.norm() - b / b.norm(), 0.0
            else:
                normal, offset = a - b, float((a.square().sum() - b.square().sum()) / 2)
            slope = (normal @ weight)[None]
            found[i, j] = (normal @ a - offset) / ball.dual_norm(slope)[0]
    return found.amin(1)


@both
@pytest.mark.parametrize("widest", [Linf(0.3), L2(0.6)], ids=str)
def test_the_radius_of_a_linear_encoder_lies_between_proof_and_attack(divergence: Divergence, widest: Ball) -> None:
    encoder, images, _ = linear_case()
    exact = exact_linear(encoder, images, divergence, widest)
    evaluation = CertifiedAttackRadius(samples=12, widest=widest, divergence=divergence, attack=NAMED["adaptive"])
    found = radii(evaluation(encoder, images, RunSettings(precision="float64")))
    proved, attacked = (torch.tensor(values, dtype=torch.float64) for values in found)
    assert (proved <= exact * (1 + 1e-9)).all()
    assert (exact <= attacked * (1 + 1e-9)).all()
    # CROWN is exact for linear functions, so only the tolerance of the search is lost.
    assert (exact - proved).max() <= 1.1e-4 * widest.radius
    assert (attacked / exact).max() < 1.2


def test_the_radius_of_a_small_network_on_two_pixels_is_that_of_a_dense_grid() -> None:
    torch.manual_seed(4)
    layers = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(2, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)
    ).eval()
    encoder = Encoder(layers, "two pixels", Domain((1, 1, 2)))
    images = Images(torch.rand(8, 1, 1, 2), ids=[f"image {k}" for k in range(8)])
    steps = torch.linspace(0, 1, 401)
    grid = torch.cartesian_prod(steps, steps).reshape(-1, 1, 1, 2)
    codes, clean = encoder(grid).double(), encoder(images.pixels(range(8))).double()
    distances = torch.cdist(codes, clean)
    proved, attacked = radii(
        replace(SMALL, samples=8, widest=Linf(1.0), attack=NAMED["adaptive"])(
            encoder, images, RunSettings(precision="float64")
        )
    )
    tight = []
    for k in range(8):
        lost = distances.argmin(1) != k
        exact = float((grid[lost] - images.pixels([k])).abs().flatten(1).amax(1).min())
        assert proved[k] <= exact
        assert attacked[k] <= exact + 1e-9 or attacked[k] - exact < 0.02
        assert proved[k] <= attacked[k]
        tight.append(proved[k] / exact)
    assert sum(tight) / len(tight) > 0.7, "vacuous"


@pytest.mark.parametrize("name", rest_slow(names(), 2))
def test_no_proof_of_a_built_in_encoder_lies_above_an_attack(name: str) -> None:
    encoder = builtin(name)
    if encoder.domain.shape != (1, 8, 8):
        pytest.skip("for other images than digits")
    result = SMALL(encoder, digits(60))
    proved, attacked = radii(result)
    assert all(low <= high for low, high in zip(proved, attacked, strict=True))
    assert result.estimate("contradictions").value == 0
    assert max(proved) > 0, "vacuous"


def test_images_gallery_and_attack_are_those_of_the_attack_radius() -> None:
    evaluation = AttackRadius(events=("retrieval",), samples=4, attack=FAST)
    attack = evaluation(builtin(), digits(60))
    proof = SMALL(builtin(), digits(60))
    assert proof.findings.ids == attack.findings.ids
    assert radii(proof)[1] == attack.series[0].values
    assert proof.estimate(ATTACKED).value == attack.estimate("attack_radius").value
    assert set(evaluation.observation().parts) <= set(SMALL.observation().parts)


def test_each_suite_certifies_images_that_the_attack_radius_attacks_with_its_attack() -> None:
    for operations in (0, HEAVY // 2, HEAVY):
        theirs, ours = (
            build(kind, suite_settings("quick", [kind], operations).get(kind.name, {}))
            for kind in (AttackRadius, CertifiedAttackRadius)
        )
        assert isinstance(theirs, AttackRadius)
        assert isinstance(ours, CertifiedAttackRadius)
        shared = ("widest", "attack", "divergence", "rivals")
        assert [getattr(ours, name) for name in shared] == [getattr(theirs, name) for name in shared]


def match_of(
    count: int, divergence: Divergence | None = None, method: Method | None = None, ball: Ball | None = None
) -> OwnMatch:
    population = Population(builtin(), digits(count), RunSettings())
    certification = Certification(6, method or Crown(), NAMED["adaptive"], 50_000)
    return own_match(population, list(range(6)), certification, divergence or L2Distance(), ball or Linf(0.5))


@both
@pytest.mark.parametrize("method", [Crown(), Interval()], ids=str)
@pytest.mark.parametrize("ball", [Linf(0.5), L2(1.0)], ids=str)
def test_every_image_of_the_gallery_is_proved_at_the_radius(divergence: Divergence, method: Method, ball: Ball) -> None:
    """The few that are bracketed speak for all: just above the radius, some image of the gallery has no proof."""
    match = match_of(150, divergence, method, ball)
    found = match.radii(1e-3)
    assert match.counted.sum(1).min() > FIRST, "the gallery must be larger than what is bracketed"
    assert (found > 0).all()
    everything = match.bounds(found, match.counted)
    assert (everything[match.counted] > 0).all()
    above = match.bounds(found + 2.5e-3 * ball.radius, match.counted)
    assert (above.amin(1) <= 0).all()


def test_the_box_settles_only_what_is_proved() -> None:
    """Bounds with the box first say of no image more than the method does without it."""
    match = match_of(150)
    radius = match.radii(1e-3)
    assert match.counted.sum(1).max() > 2 * match.own.shape[1], "the box is not used"
    with_box = match.bounds(radius, match.counted)
    alone = (
        torch.cat([match.bounds(radius, match.counted & (torch.arange(150) // 30 == part)) for part in range(5)])
        .unflatten(0, (5, -1))
        .amin(0)
    )
    assert (with_box <= alone + 1e-9).all()
    assert (with_box < alone - 1e-9).any(), "vacuous"


def test_random_points_inside_keep_their_own_match() -> None:
    match = match_of(150)
    radius = match.radii(1e-3)
    generator = torch.Generator().manual_seed(0)
    for scale, expected in ((1.0, False), (6.0, True)):
        hits = torch.zeros(6, dtype=torch.bool)
        for _ in range(50):
            signs = torch.randn(match.anchors.shape, generator=generator).sign().double()
            hits |= match.entered((match.anchors + scale * radius[:, None, None, None] * signs).clamp(0, 1))
        assert bool(hits.any()) == expected


def test_a_bound_that_lies_is_found_out() -> None:
    result = replace(SMALL, method=Boast(9.0))(builtin(), digits(60))
    assert result.estimate("contradictions").value == 4
    (verdict,) = result.findings.verdicts
    assert verdict.status == "refuted"
    assert result.findings.warnings
    assert float(verdict.witness["distance"]) <= 0.5 * (1 + 1e-6)
    assert verdict.witness["image"] in result.findings.ids


def test_copies_are_undefined_and_equal_embeddings_prove_nothing() -> None:
    pixels = digits(4).pixels([0, 1, 2, 3])
    copies = SMALL(builtin(), Images(pixels[[0, 0, 1, 2]], ids=list("abcd")))
    proved, attacked = radii(copies)
    assert [isnan(value) for value in proved] == [isnan(value) for value in attacked]
    assert sum(map(isnan, proved)) == 1
    constant = torch.nn.Linear(64, 3)
    torch.nn.init.zeros_(constant.weight)
    collapsed = torch.nn.Sequential(torch.nn.Flatten(), constant).eval()
    proved, attacked = radii(SMALL(Encoder(collapsed, "collapsed", Domain((1, 8, 8))), digits(20)))
    assert proved == (0.0,) * 4
    assert all(value == inf or value >= 0 for value in attacked)


def test_a_bank_is_the_gallery() -> None:
    images, bank = digits(20), digits(120)
    far = Images(bank.pixels(range(100, 120)), ids=[f"other {k}" for k in range(20)])
    alone, searched = SMALL(builtin(), images), SMALL(builtin(), images, bank=far)
    assert radii(alone)[0] != radii(searched)[0]
    assert all(low <= high for low, high in zip(*radii(searched), strict=True))


@pytest.mark.parametrize(
    ("evaluation", "encoder"),
    [(replace(SMALL, neurons=3), builtin), (SMALL, sorting), (replace(SMALL, divergence=L1Distance()), builtin)],
    ids=["too large", "unknown operation", "no half-space"],
)
def test_what_cannot_be_bounded_is_refused(evaluation: Evaluation, encoder: Callable[[], Encoder]) -> None:
    with pytest.raises(HoldfastError):
        evaluation(encoder(), digits(20))
